//! The Kubernetes objects that decisions need, reduced to the fields that matter.
//!
//! A decoded `k8s_openapi` Pod takes about twenty times the memory. Fields whose enumeration may grow in the API are text and
//! are interpreted where they are used, so that an unknown value never breaks a list. Unknown fields are ignored.

pub mod annotation;
mod command_line;
mod hook_variables;
mod known;
mod memory_settings;
mod meta;
mod pod;
mod quota;
mod resize_phase;
mod shared;
mod start_scripts;
mod vpa;
mod workload;

pub use hook_variables::{HOOK_VARIABLES, HookVariables, LONGEST_HOOK};
pub use known::{KnownObjects, Undecided};
pub use memory_settings::{MemoryOption, MemorySetting, NODE_MEMORY, SettingSource};
pub use meta::*;
pub use pod::*;
pub use quota::*;
pub use resize_phase::ResizePhase;
pub use shared::Shared;
pub use start_scripts::add_start_script_variables;
pub use vpa::*;
pub use workload::*;
