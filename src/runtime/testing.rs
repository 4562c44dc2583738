//! A container runtime for tests, which answers the calls that they make.

use std::fmt::Debug;
use std::path::Path;
use std::time::Duration;

use super::{ContainerRuntime, Executed, Problem, RuntimeError, RuntimeInfo};
use crate::model::CriResources;

/// A runtime that answers some of the calls. A call that its test does not expect panics.
pub(crate) trait FakeRuntime: Debug + Send + Sync {
    fn stored(&self) -> Result<Option<CriResources>, RuntimeError> {
        panic!("the stored spec of a container is read")
    }

    fn update(&self, _: &CriResources) -> Result<(), RuntimeError> {
        panic!("a container is updated")
    }

    fn exec(&self, _id: &str, _command: &[String]) -> Result<Executed, RuntimeError> {
        panic!("a command runs in a container")
    }

    fn signal(&self, _id: &str, _signal: u32) -> Result<(), RuntimeError> {
        panic!("a container gets a signal")
    }

    fn first_process(&self) -> Result<Option<i32>, RuntimeError> {
        panic!("the first process of a container is looked up")
    }
}

#[tonic::async_trait]
impl<F: FakeRuntime> ContainerRuntime for F {
    async fn info(&self) -> Result<RuntimeInfo, RuntimeError> {
        panic!("the runtime is asked for its name")
    }

    async fn stored(&self, _: &str) -> Result<Option<CriResources>, RuntimeError> {
        FakeRuntime::stored(self)
    }

    async fn update(&self, _: &str, fields: &CriResources) -> Result<(), RuntimeError> {
        FakeRuntime::update(self, fields)
    }

    async fn exec(&self, id: &str, command: &[String], _: Duration) -> Result<Executed, RuntimeError> {
        FakeRuntime::exec(self, id, command)
    }

    async fn signal(&self, id: &str, signal: u32) -> Result<(), RuntimeError> {
        FakeRuntime::signal(self, id, signal)
    }

    async fn first_process(&self, _: &str) -> Result<Option<i32>, RuntimeError> {
        FakeRuntime::first_process(self)
    }
}

/// A call of this method that fails like this.
pub(crate) fn failed(method: &'static str, problem: Problem) -> RuntimeError {
    RuntimeError {
        method,
        socket: Path::new("/run/x.sock").into(),
        container: None,
        problem,
    }
}
