//! HTTP: maps paths and parameters to the store.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use axum::response::Response;
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::Shared;
use super::faults::Effect;
use super::store::{Change, Refusal, not_found};
use crate::support::policy::{AGENT, Policy, Request};

/// The interval of bookmarks. Real API servers send them less often; here every test sees some.
const BOOKMARKS: Duration = Duration::from_millis(500);

pub(super) fn router(shared: Arc<Shared>) -> Router {
    Router::new().fallback(answer).with_state(shared)
}

/// The resource, object or list that a path names.
#[derive(Debug, Clone, Default)]
struct Place {
    namespace: Option<String>,
    plural: String,
    name: Option<String>,
    subresource: Option<String>,
    selector: String,
}

impl Place {
    /// Parses `/api/v1/…` or `/apis/<group>/<version>/…`.
    fn of(path: &str, parameters: &HashMap<String, String>) -> Self {
        let mut segments: Vec<_> = path.split('/').skip(1).map(str::to_owned).collect();
        let rest = segments.split_off(if segments[0] == "api" { 2 } else { 3 });
        let mut rest = rest.into_iter().peekable();
        let mut place = Self {
            selector: parameters.get("fieldSelector").cloned().unwrap_or_default(),
            ..Self::default()
        };
        if rest.next_if(|first| first == "namespaces").is_some() {
            place.namespace = rest.next();
        }
        place.plural = rest.next().unwrap_or_default();
        place.name = rest.next();
        place.subresource = rest.next();
        place
    }

    fn resource(&self) -> String {
        match &self.subresource {
            Some(subresource) => format!("{}/{subresource}", self.plural),
            None => self.plural.clone(),
        }
    }

    /// Whether an object matches the namespace and the field selector.
    fn has(&self, object: &Value) -> bool {
        let field = |path: &str| {
            let found = path.split('.').fold(object, |value, field| &value[field]);
            found.as_str().unwrap_or_default().to_owned()
        };
        let here = self
            .namespace
            .as_ref()
            .is_none_or(|namespace| field("metadata.namespace") == *namespace);
        here && self
            .selector
            .split(',')
            .filter(|term| !term.is_empty())
            .all(|term| match term.split_once("!=") {
                Some((path, value)) => field(path) != value,
                None => term.split_once('=').is_some_and(|(path, value)| field(path) == value),
            })
    }
}

async fn answer(State(shared): State<Arc<Shared>>, method: Method, uri: Uri, mut body: Bytes) -> Response {
    if uri.path() == "/readyz" {
        return Response::new(Body::from("ok"));
    }
    let parameters = parameters(uri.query().unwrap_or_default());
    let place = Place::of(uri.path(), &parameters);
    let dry = parameters.contains_key("dryRun");
    let watches = parameters.contains_key("watch");
    let verb = match (&method, &place.name) {
        (&Method::GET, None) if watches => "watch",
        (&Method::GET, None) => "list",
        (&Method::GET, Some(_)) => "get",
        (&Method::POST, _) => "create",
        _ => "patch",
    };
    let _call = (verb != "watch").then(|| Answering::begin(&shared));
    let effect = shared.faults.lock().unwrap().count_call(verb, &place.resource(), dry);
    match effect {
        Some(Effect::Slow(time)) => tokio::time::sleep(time).await,
        Some(Effect::Held(ref end)) => end.cancelled().await,
        Some(Effect::Alters(ref other)) => body = other.to_string().into(),
        Some(Effect::Stalls | Effect::Mute | Effect::Torn) | None => {}
        Some(Effect::Forbidden) => return status(&forbidden(verb, &place), None),
        Some(Effect::Unknown) => return status(&unknown(), None),
        Some(Effect::Says(code, reason, message, retry_after)) => {
            let message = message.to_owned();
            return status(&Refusal { code, reason, message }, retry_after);
        }
    }
    let result = match verb {
        "watch" => return watch(shared, place, &parameters),
        "list" => Ok(list(&shared, &place)),
        "get" => get(&shared, &place),
        "create" => create(&shared, &place, &body),
        _ => patch(&shared, &place, &body, dry),
    };
    if matches!(&result, Err(refusal) if verb == "patch" && refusal.reason == "Conflict") {
        shared.faults.lock().unwrap().uncount_conflict(&place.resource());
    }
    if matches!(effect, Some(Effect::Mute)) {
        std::future::pending::<()>().await;
    }
    result.map_or_else(
        |refusal| status(&refusal, None),
        |object| match effect {
            Some(Effect::Torn) => truncated(&object),
            _ => reply(StatusCode::OK, &object),
        },
    )
}

/// Sends the first half of an answer, then resets the stream.
fn truncated(object: &Value) -> Response {
    let text = object.to_string();
    let text: String = text.chars().take(text.len() / 2).collect();
    let parts = [Ok(text), Err(io::Error::from(io::ErrorKind::ConnectionReset))];
    Response::new(Body::from_stream(stream::iter(parts)))
}

/// A call in progress. Dropped when the answer is complete or the client has disconnected.
struct Answering(Arc<Shared>);

impl Answering {
    fn begin(shared: &Arc<Shared>) -> Self {
        shared.under_way.lock().unwrap().begin();
        Self(Arc::clone(shared))
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.under_way.lock().unwrap().now -= 1;
    }
}

fn parameters(query: &str) -> HashMap<String, String> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), unescaped(value))).collect()
}

fn unescaped(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (code, rest) = part.split_at(2);
        bytes.push(u8::from_str_radix(code, 16).unwrap());
        bytes.extend(rest.as_bytes());
    }
    String::from_utf8(bytes).unwrap()
}

fn list(shared: &Shared, place: &Place) -> Value {
    let store = shared.store();
    let items: Vec<_> = store.all(&place.plural).filter(|object| place.has(object)).collect();
    json!({"kind": "List", "metadata": {"resourceVersion": store.version().to_string()}, "items": items})
}

fn get(shared: &Shared, place: &Place) -> Result<Value, Refusal> {
    let name = place.name.as_deref().unwrap_or_default();
    let store = shared.store();
    let mut objects = store.all(&place.plural);
    let found = objects.find(|object| object["metadata"]["name"] == name && place.has(object));
    found.cloned().ok_or_else(|| not_found(&place.plural, name))
}

/// Checks a write of the agent against the shipped admission policies.
fn allowed(shared: &Shared, place: &Place, before: &Value, after: &Value) -> Result<(), Refusal> {
    let request = Request {
        user: AGENT,
        node: Some(&shared.node),
        operation: if before.is_null() { "CREATE" } else { "UPDATE" },
        subresource: place.subresource.as_deref(),
        before: before.clone(),
        after: after.clone(),
    };
    let refusals = Policy::of(&place.plural).refusals(&request);
    let denied = |message: &String| Refusal {
        code: 403,
        reason: "Forbidden",
        message: format!(
            "{} is forbidden: ValidatingAdmissionPolicy denied request: {message}",
            place.plural
        ),
    };
    refusals.first().map_or(Ok(()), |message| Err(denied(message)))
}

fn create(shared: &Shared, place: &Place, body: &Bytes) -> Result<Value, Refusal> {
    let object: Value = serde_json::from_slice(body).unwrap();
    allowed(shared, place, &Value::Null, &object)?;
    shared.change(|store| store.put(&place.plural, object.clone()));
    Ok(object)
}

fn patch(shared: &Shared, place: &Place, body: &Bytes, dry: bool) -> Result<Value, Refusal> {
    let patch: Value = serde_json::from_slice(body).unwrap();
    let mut object = get(shared, place)?;
    let name = &full_name(&object);
    if place.subresource.as_deref() == Some("resize") {
        let allowed = |before: &Value, after: &Value| allowed(shared, place, before, after);
        return shared.change(|store| store.resize(name, &patch, dry, allowed));
    }
    if place.subresource.as_deref() == Some("status") {
        let allowed = |before: &Value, after: &Value| allowed(shared, place, before, after);
        return shared.change(|store| store.patch_status(name, &patch, allowed));
    }
    let before = object.clone();
    merge(&mut object, patch);
    allowed(shared, place, &before, &object)?;
    shared.change(|store| store.put(&place.plural, object.clone()));
    Ok(object)
}

/// `namespace/name`.
pub(super) fn full_name(object: &Value) -> String {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    format!("{}/{}", text("namespace"), text("name"))
}

fn merge(object: &mut Value, patch: Value) {
    match (object, patch) {
        (Value::Object(object), Value::Object(patch)) => {
            for (field, value) in patch {
                merge(object.entry(field).or_insert(Value::Null), value);
            }
        }
        (object, patch) => *object = patch,
    }
}

/// A watch, until its timeout or until its version is forgotten.
fn watch(shared: Arc<Shared>, place: Place, parameters: &HashMap<String, String>) -> Response {
    let number = |name: &str| parameters.get(name).and_then(|text| text.parse::<u64>().ok());
    let end = Instant::now() + Duration::from_secs(number("timeoutSeconds").unwrap_or(600));
    let mut from = number("resourceVersion").unwrap_or_default();
    let changed = shared.changed.subscribe();
    let mut initial = String::new();
    if parameters.contains_key("sendInitialEvents") {
        (initial, from) = initial_list(&shared, &place);
    }
    let first = stream::iter((!initial.is_empty()).then_some(Ok(initial)));
    let lines = stream::unfold((shared, place, from, changed, false), move |state| async move {
        let (shared, place, from, mut changed, ended) = state;
        let mut bookmark = Instant::now() + BOOKMARKS;
        loop {
            if ended || Instant::now() >= end {
                return None;
            }
            changed.borrow_and_update();
            let stalls = shared.faults.lock().unwrap().stalls(&place.plural);
            if !stalls {
                let (text, to, ended) = changes_since(&shared, &place, from);
                let due = Instant::now() >= bookmark;
                if !text.is_empty() || due {
                    let text = if text.is_empty() { bookmark_at(to) } else { text };
                    return Some((
                        Ok::<_, std::convert::Infallible>(text),
                        (shared, place, to, changed, ended),
                    ));
                }
            }
            if timeout_at(end.min(bookmark), changed.changed()).await.is_err() && stalls {
                bookmark = Instant::now() + BOOKMARKS;
            }
        }
    });
    Response::new(Body::from_stream(first.chain(lines)))
}

/// All matching objects as watch lines, followed by the bookmark that ends the initial list.
fn initial_list(shared: &Shared, place: &Place) -> (String, u64) {
    let store = shared.store();
    let there = store.all(&place.plural).filter(|object| place.has(object));
    let mut text: String = there.map(|object| line("ADDED", object)).collect();
    let version = store.version().to_string();
    let end = json!({"metadata": {"resourceVersion": version, "annotations": {"k8s.io/initial-events-end": "true"}}});
    text += &line("BOOKMARK", &end);
    (text, store.version())
}

/// The watch lines since a version, the version they lead to, and whether the watch ends.
fn changes_since(shared: &Shared, place: &Place, from: u64) -> (String, u64, bool) {
    let store = shared.store();
    let Some(changes) = store.since(from) else {
        let gone = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"});
        return (line("ERROR", &gone), from, true);
    };
    let text = changes
        .filter(|change| change.plural == place.plural)
        .filter_map(|change| watch_event(place, change));
    (text.collect(), store.version(), false)
}

/// The watch event of a change. An object that enters the selection is ADDED, and one that leaves it is DELETED.
fn watch_event(place: &Place, change: &Change) -> Option<String> {
    let before = change.before.as_ref().filter(|object| place.has(object));
    let after = change.after.as_ref().filter(|object| place.has(object));
    match (before, after) {
        (None, None) => None,
        (None, Some(after)) => Some(line("ADDED", after)),
        (Some(_), Some(after)) => Some(line("MODIFIED", after)),
        (Some(before), None) => Some(line("DELETED", before)),
    }
}

fn bookmark_at(version: u64) -> String {
    line(
        "BOOKMARK",
        &json!({"metadata": {"resourceVersion": version.to_string()}}),
    )
}

fn line(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

fn reply(code: StatusCode, object: &Value) -> Response {
    let mut response = Response::new(Body::from(object.to_string()));
    *response.status_mut() = code;
    response
}

fn status(refusal: &Refusal, retry_after: Option<u32>) -> Response {
    let Refusal { code, reason, message } = refusal;
    let status = json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message});
    let mut response = reply(StatusCode::from_u16(*code).unwrap(), &status);
    if let Some(seconds) = retry_after {
        response.headers_mut().insert("Retry-After", seconds.into());
    }
    response
}

fn forbidden(verb: &str, place: &Place) -> Refusal {
    let (resource, name) = (place.resource(), place.name.as_deref().unwrap_or_default());
    let who = "User \"system:serviceaccount:vscaled:vscaled\"";
    Refusal {
        code: 403,
        reason: "Forbidden",
        message: format!("pods \"{name}\" is forbidden: {who} cannot {verb} resource \"{resource}\" in API group \"\""),
    }
}

fn unknown() -> Refusal {
    Refusal {
        code: 404,
        reason: "NotFound",
        message: "the server could not find the requested resource".to_owned(),
    }
}
