//! Segments by hand, to and from one stack.
