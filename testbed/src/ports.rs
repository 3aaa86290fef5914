//! Free ports for servers that take a number, not a listening socket.

use std::collections::HashSet;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

/// Below Linux's default range for outgoing connections (32768 and up), so that no connection takes a port
/// between the choice and the server's start, nor while a server is down for a restart.
const FIRST: u16 = 12_000;
const COUNT: u16 = 20_000;

/// Chooses a port on 127.0.0.1 on which nothing listens now, and which this process will not be given again.
///
/// # Panics
/// When no port is free after very many tries.
pub fn free_port() -> u16 {
    static TAKEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    let taken = taken.get_or_insert_with(HashSet::new);
    for _ in 0..1000 {
        // Random, because other test processes choose at the same time.
        let [high, low, ..] = *uuid::Uuid::new_v4().as_bytes();
        let port = FIRST + u16::from_be_bytes([high, low]) % COUNT;
        if !taken.contains(&port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            taken.insert(port);
            return port;
        }
    }
    panic!("no free port on 127.0.0.1 between {FIRST} and {}", FIRST + COUNT)
}
