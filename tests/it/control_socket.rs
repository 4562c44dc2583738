//! Promise: at the node's socket, root sees, changes and undoes what the agent does; nobody else does, and no caller keeps
//! others waiting.
//!
//! The real server and the real `vscalectl` talk over a real socket; only the agent behind it follows a script. Run as
//! root: other users are real users here.

mod abuse;
mod access;
mod agent;
mod commands;
mod life;
mod script;
