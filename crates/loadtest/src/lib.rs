//! A packet load tester that finds the no-drop rate of a device.
