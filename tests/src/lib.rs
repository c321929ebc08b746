//! System tests and the simulator.

#[cfg(test)]
mod enrolment;
