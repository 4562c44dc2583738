//! The connection of a command to the agent.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use super::{Failure, NO_AGENT, REFUSED, USAGE, io};
use crate::control::{Client, ClientError, DEFAULT_SOCKET, LEFT_OUT, proto};

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

/// Warns of the pods that an answer lacks, where nothing else shows the agent's problems.
pub(super) fn warn_of_left_out(agent: Option<&proto::Agent>) {
    left_out(agent).for_each(io::warn);
}

fn left_out(agent: Option<&proto::Agent>) -> impl Iterator<Item = &str> {
    let problems = agent.into_iter().flat_map(|agent| &agent.problems);
    problems
        .map(String::as_str)
        .filter(|problem| problem.starts_with(LEFT_OUT))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_which_pods_it_lacks() {
        let lacks = format!("{LEFT_OUT}3 pods of namespace shop");
        let agent = proto::Agent {
            problems: vec![lacks.clone(), "no runtime answers".to_owned()],
            ..proto::Agent::default()
        };
        assert_eq!(left_out(Some(&agent)).collect::<Vec<_>>(), [lacks]);
        assert_eq!(left_out(None).count(), 0);
    }

    #[test]
    fn the_exit_code_says_who_failed() {
        let text = String::new;
        for (error, code) in [
            (ClientError::NoAgent(text()), 3),
            (ClientError::Path(PathBuf::new()), 2),
            (ClientError::Answer(tonic::Status::invalid_argument("")), 2),
            (ClientError::Answer(tonic::Status::internal("")), 1),
            (ClientError::Denied(text()), 1),
            (ClientError::Unknown, 1),
        ] {
            let said = error.to_string();
            assert_eq!(Failure::from(error).code, code, "{said}");
        }
    }
}
