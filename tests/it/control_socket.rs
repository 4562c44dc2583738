//! Promise: at the node's socket, root and the configured groups see, change and undo what the agent does, each as far as
//! it may; nobody else does, and no caller keeps others waiting.
//!
//! The real server and the real `vscalectl` talk over a real socket; only the agent behind it follows a script. Run as
//! root: other users are real users here.

mod abuse;
mod access;
mod agent;
mod commands;
mod doctor;
mod life;
mod script;
mod several;
mod terminal;
