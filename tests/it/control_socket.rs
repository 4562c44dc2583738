//! Promise: at the node's socket, root and the configured groups can read, change and undo the agent's actions, each
//! within its rights. Other users get no access, and no caller blocks others.
//!
//! The real server and the real `vscalectl` use a real socket; only the agent behind the server follows a script. The
//! tests run as root, so other users are real users.

mod abuse;
mod access;
mod agent;
mod commands;
mod doctor;
mod life;
mod script;
mod several;
mod terminal;
