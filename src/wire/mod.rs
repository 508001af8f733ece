//! JSON-RPC 2.0 over Unix sockets, loopback TCP and stdin/stdout.
//!
//! A message passes through these modules in order. [`frame`] cuts bytes into JSON texts,
//! [`rpc`] reads the envelope, [`pending`] sees to exactly one answer an id, and [`server`] hands
//! each [`Call`] to a [`Service`] on a connection of its own. The transport knows no method's name
//! but `$/cancelRequest`, which belongs to the transport.

pub mod auth;
mod call;
pub mod client;
mod error;
pub mod method;
mod connection;
pub mod frame;
pub mod pending;
pub mod rpc;
pub mod server;
pub mod socket;

pub use call::{Call, Connection, ConnectionId, Notifier, Peer, Service};
pub use client::Client;
pub use rpc::{Kind, RpcError};
pub use server::{Limits, Listener, serve};
pub use socket::Socket;
