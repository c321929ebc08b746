//! What the tests share: builders, fakes and ways to wait for a condition.

pub mod api_server;
pub mod cores;
pub mod debian;
pub mod foreign;
pub mod http;
pub mod machine;
pub mod network;
pub mod processes;
pub mod replay;
pub mod shell;
pub mod ship;
