//! Where the agent is, and how a command asks it.

use std::path::PathBuf;

use clap::Args;

use super::Failure;
use crate::control::{Client, ClientError, DEFAULT_SOCKET};

/// The agent that commands talk to.
#[derive(Debug, Args)]
pub(super) struct Agent {
    /// The socket vscaled listens at
    #[arg(long, global = true, env = "VSCALED_SOCKET", default_value = DEFAULT_SOCKET, value_name = "PATH")]
    socket: PathBuf,
}

impl Agent {
    /// Connects, asks and waits for the answer.
    pub(super) fn ask<T>(&self, question: impl AsyncFnOnce(&mut Client) -> Result<T, Failure>) -> Result<T, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::Refused(anyhow::Error::new(error).context("cannot start")))?;
        runtime.block_on(async {
            let mut client = Client::connect(&self.socket).await?;
            question(&mut client).await
        })
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let class = match &error {
            ClientError::NoDaemon { .. } | ClientError::Lost { .. } | ClientError::Late { .. } => Self::NoDaemon,
            ClientError::Path { .. } => Self::Usage,
            ClientError::Answer(status) if status.code() == tonic::Code::InvalidArgument => Self::Usage,
            ClientError::Denied { .. } | ClientError::Unknown | ClientError::Answer(_) => Self::Refused,
        };
        class(error.into())
    }
}
