//! System tests and the simulator.
