//! The connection of a command to the agent.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use super::{Failure, NO_AGENT, REFUSED, USAGE};
use crate::control::{Client, ClientError, DEFAULT_SOCKET};

/// The agent that commands talk to.
#[derive(Debug, Args)]
pub(super) struct Agent {
    /// The socket vscaled listens at
    #[arg(long, global = true, env = "VSCALED_SOCKET", default_value = DEFAULT_SOCKET, value_name = "PATH")]
    pub(super) socket: PathBuf,
}

impl Agent {
    /// Connects to the agent, and makes the calls of a command.
    pub(super) fn call<T>(&self, calls: impl AsyncFnOnce(&mut Client) -> Result<T, Failure>) -> Result<T, Failure> {
        block_on(async { calls(&mut Client::connect(&self.socket).await?).await })?
    }
}

/// Runs a future to its end.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    Ok(runtime.block_on(future))
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let code = match &error {
            ClientError::NoAgent(_) => NO_AGENT,
            ClientError::Path(_) => USAGE,
            ClientError::Answer(status) if status.code() == tonic::Code::InvalidArgument => USAGE,
            ClientError::Denied(_) | ClientError::Unknown | ClientError::Answer(_) => REFUSED,
        };
        let error = error.into();
        Self { code, error }
    }
}
