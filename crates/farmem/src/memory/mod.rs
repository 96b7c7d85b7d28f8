//! The memory of a node.
