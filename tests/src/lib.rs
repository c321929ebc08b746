//! System tests and the simulator.

#[cfg(test)]
mod api;
pub mod api_server;
#[cfg(test)]
mod corpus;
pub mod http;
#[cfg(test)]
mod kubectl;
pub mod replay;
