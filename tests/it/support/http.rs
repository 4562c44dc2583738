//! A minimal HTTP/1.0 client for servers on this machine.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

/// The status and the body; `None` if no server answers.
pub(crate) fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    send(address, "GET", path, "")
}

/// The answer to a POST of this JSON.
pub(crate) fn post(address: SocketAddr, path: &str, json: &str) -> Option<(u16, String)> {
    send(address, "POST", path, json)
}

fn send(address: SocketAddr, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    let length = body.len();
    let request = format!("{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}

/// Escapes a text for a query.
pub(crate) fn escaped(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' | b'.' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect()
}
