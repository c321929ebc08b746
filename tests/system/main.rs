//! Whole paths through the real code, on real sockets, processes and daemons.

#[cfg(test)]
mod enrolment;
