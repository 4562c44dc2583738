//! Translates the events of the two event services that runtimes have.

use containerd_client::events::{ContainerDelete, ContainerUpdate, TaskDelete, TaskExit, TaskOom, TaskStart};
use containerd_client::services::v1::SubscribeRequest;
use containerd_client::types::Envelope;
use futures::StreamExt;
use prost::{DecodeError, Message};
use tonic::Status;

use crate::model::RuntimeKind;

use super::super::Cri;
use super::super::proto::{ContainerEventResponse, ContainerEventType, GetEventsRequest};
use super::follow::Events;
use super::{ContainerEvent, RuntimeEvent};

/// The containerd namespace in which its CRI keeps pods.
pub(in crate::runtime) const NAMESPACE: &str = "k8s.io";
const TASK_START: &str = "/tasks/start";
const TASK_EXIT: &str = "/tasks/exit";
/// containerd sends this after the end, when the cgroup is gone.
const TASK_DELETE: &str = "/tasks/delete";
const TASK_OOM: &str = "/tasks/oom";
const CONTAINER_UPDATE: &str = "/containers/update";
const CONTAINER_DELETE: &str = "/containers/delete";
const TOPICS: [&str; 6] = [
    TASK_START,
    TASK_EXIT,
    TASK_DELETE,
    TASK_OOM,
    CONTAINER_UPDATE,
    CONTAINER_DELETE,
];

/// A service that streams events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Containerd,
    Cri,
}

impl Source {
    /// The services a runtime may have, best first.
    pub(super) const fn of(kind: RuntimeKind) -> &'static [Self] {
        match kind {
            RuntimeKind::Containerd => &[Self::Containerd, Self::Cri],
            RuntimeKind::Crio | RuntimeKind::Docker => &[Self::Cri],
        }
    }

    pub(super) const fn method(self) -> &'static str {
        match self {
            Self::Containerd => "containerd's Subscribe",
            Self::Cri => "GetContainerEvents",
        }
    }

    /// Subscribes. grpc-go servers answer with the first event, so this may wait for long.
    pub(super) async fn open(self, cri: Cri) -> Result<Events, Status> {
        match self {
            Self::Containerd => {
                let mut client = containerd_client::Client::from(cri.channel.clone()).events();
                let filters = TOPICS.map(|topic| format!("namespace=={NAMESPACE},topic==\"{topic}\""));
                let answer = client
                    .subscribe(SubscribeRequest {
                        filters: filters.to_vec(),
                    })
                    .await?;
                let events = answer.into_inner().map(|envelope| of_containerd(&envelope?));
                Ok(events.boxed())
            }
            Self::Cri => {
                let answer = cri.client.clone().get_container_events(GetEventsRequest {}).await?;
                Ok(answer.into_inner().map(|event| event.map(of_cri)).boxed())
            }
        }
    }
}

fn of_containerd(envelope: &Envelope) -> Result<Option<RuntimeEvent>, Status> {
    let Some(payload) = &envelope.event else {
        return Err(Status::data_loss(format!(
            "an event of topic {} is empty",
            envelope.topic
        )));
    };
    decode(&envelope.topic, &payload.value)
        .map_err(|error| Status::data_loss(format!("an event of topic {}: {error}", envelope.topic)))
}

fn decode(topic: &str, payload: &[u8]) -> Result<Option<RuntimeEvent>, DecodeError> {
    let event = match topic {
        TASK_START => RuntimeEvent::container(TaskStart::decode(payload)?.container_id, ContainerEvent::Started),
        TASK_EXIT => {
            let exit = TaskExit::decode(payload)?;
            // A process that exec started has an id of its own.
            if exit.id != exit.container_id {
                return Ok(None);
            }
            RuntimeEvent::container(exit.container_id, ContainerEvent::Stopped)
        }
        TASK_DELETE => {
            let deleted = TaskDelete::decode(payload)?;
            if !deleted.id.is_empty() && deleted.id != deleted.container_id {
                return Ok(None);
            }
            RuntimeEvent::container(deleted.container_id, ContainerEvent::Stopped)
        }
        TASK_OOM => RuntimeEvent::container(TaskOom::decode(payload)?.container_id, ContainerEvent::OutOfMemory),
        CONTAINER_UPDATE => RuntimeEvent::container(ContainerUpdate::decode(payload)?.id, ContainerEvent::Updated),
        CONTAINER_DELETE => RuntimeEvent::container(ContainerDelete::decode(payload)?.id, ContainerEvent::Removed),
        _ => return Ok(None),
    };
    Ok(Some(event))
}

fn of_cri(event: ContainerEventResponse) -> Option<RuntimeEvent> {
    let kind = match ContainerEventType::try_from(event.container_event_type) {
        Ok(ContainerEventType::ContainerCreatedEvent) => return None,
        Ok(ContainerEventType::ContainerStartedEvent) => ContainerEvent::Started,
        Ok(ContainerEventType::ContainerStoppedEvent) => ContainerEvent::Stopped,
        Ok(ContainerEventType::ContainerDeletedEvent) => ContainerEvent::Removed,
        // A kind newer than this program: something about the container changed.
        Err(_) => ContainerEvent::Updated,
    };
    Some(RuntimeEvent::container(event.container_id, kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_an_exec_is_not_the_end_of_its_container() {
        let exit = |id: &str| {
            let exit = TaskExit {
                container_id: "c1".into(),
                id: id.into(),
                ..TaskExit::default()
            };
            decode(TASK_EXIT, &exit.encode_to_vec()).unwrap()
        };
        assert_eq!(exit("exec-7"), None);
        assert_eq!(exit("c1"), Some(RuntimeEvent::container("c1", ContainerEvent::Stopped)));
    }

    #[test]
    fn a_container_ends_once_more_when_its_cgroup_is_gone() {
        let deleted = |id: &str| {
            let deleted = TaskDelete {
                container_id: "c1".into(),
                id: id.into(),
                ..TaskDelete::default()
            };
            decode(TASK_DELETE, &deleted.encode_to_vec()).unwrap()
        };
        let stopped = Some(RuntimeEvent::container("c1", ContainerEvent::Stopped));
        assert_eq!((deleted(""), deleted("c1")), (stopped.clone(), stopped));
        assert_eq!(deleted("exec-7"), None);
    }

    #[test]
    fn an_undecodable_event_names_its_topic() {
        let envelope = Envelope {
            topic: TASK_START.into(),
            event: Some(prost_types::Any {
                type_url: "containerd.events.TaskStart".into(),
                value: vec![0xff, 0xff],
            }),
            ..Envelope::default()
        };
        let error = of_containerd(&envelope).unwrap_err();
        assert!(
            error.message().starts_with("an event of topic /tasks/start: "),
            "{error}"
        );
    }

    #[test]
    fn a_cri_event_of_an_unknown_kind_still_says_look() {
        let event = ContainerEventResponse {
            container_id: "c1".into(),
            container_event_type: 99,
            created_at: 0,
        };
        assert_eq!(
            of_cri(event),
            Some(RuntimeEvent::container("c1", ContainerEvent::Updated))
        );
    }
}
