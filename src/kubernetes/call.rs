//! One request to the API server as data: verb, kind, scope and parameters → method, path and query. Pure.

use std::fmt;

use http::Method;

/// A kind of object as the API server serves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Kind {
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The version within the group.
    pub version: &'static str,
    /// The plural name in paths and in RBAC rules, such as `pods`.
    pub plural: &'static str,
}

impl Kind {
    /// A kind by group, version and plural name.
    #[must_use]
    pub const fn new(group: &'static str, version: &'static str, plural: &'static str) -> Self {
        Self { group, version, plural }
    }
}

/// A verb of RBAC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Patch,
}

impl Verb {
    /// The name in RBAC and in metrics.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    pub(super) const fn method(self) -> Method {
        match self {
            Self::Get | Self::List | Self::Watch => Method::GET,
            Self::Create => Method::POST,
            Self::Patch => Method::PATCH,
        }
    }
}

/// A request, apart from its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub verb: Verb,
    pub kind: Kind,
    /// None for all namespaces, and for cluster-scoped kinds.
    pub namespace: Option<String>,
    /// The object's name, for verbs about one object.
    pub name: Option<String>,
    /// A subresource of the object, such as `resize`.
    pub subresource: Option<&'static str>,
    pub query: Vec<(&'static str, String)>,
}

impl Call {
    /// A request for a kind in all namespaces.
    #[must_use]
    pub const fn new(verb: Verb, kind: Kind) -> Self {
        Self {
            verb,
            kind,
            namespace: None,
            name: None,
            subresource: None,
            query: Vec::new(),
        }
    }

    /// A patch of a pod's subresource.
    pub(super) fn patch_pod(namespace: &str, name: &str, subresource: &'static str) -> Self {
        Self {
            subresource: Some(subresource),
            ..Self::new(Verb::Patch, Kind::new("", "v1", "pods"))
                .within(Some(namespace))
                .named(name)
        }
    }

    /// The same request in one namespace, or in all namespaces.
    #[must_use]
    pub fn within(mut self, namespace: Option<&str>) -> Self {
        self.namespace = namespace.map(str::to_owned);
        self
    }

    /// The same request for one object.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// The same request with one more query parameter.
    #[must_use]
    pub fn with(mut self, parameter: &'static str, value: impl Into<String>) -> Self {
        self.query.push((parameter, value.into()));
        self
    }

    /// The resource as RBAC names it: `pods`, `pods/resize`.
    pub fn resource(&self) -> String {
        match self.subresource {
            Some(subresource) => format!("{}/{subresource}", self.kind.plural),
            None => self.kind.plural.to_owned(),
        }
    }

    pub(super) fn path(&self) -> String {
        let Kind { group, version, plural } = self.kind;
        let mut path = if group.is_empty() {
            format!("/api/{version}")
        } else {
            format!("/apis/{group}/{version}")
        };
        let namespace = self.namespace.iter().flat_map(|namespace| ["namespaces", namespace]);
        let rest = self.name.as_deref().into_iter().chain(self.subresource);
        for segment in namespace.chain([plural]).chain(rest) {
            path.push('/');
            path.push_str(&escaped(segment));
        }
        let parameters = self.query.iter().map(|(name, value)| (*name, value.as_str()));
        let watch = (self.verb == Verb::Watch).then_some(("watch", "true"));
        for (index, (name, value)) in watch.into_iter().chain(parameters).enumerate() {
            path.push(if index == 0 { '?' } else { '&' });
            path.push_str(name);
            path.push('=');
            path.push_str(&escaped(value));
        }
        path
    }
}

/// `list pods`, `get replicasets shop/web`.
impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb.as_str(), self.resource())?;
        match (&self.namespace, &self.name) {
            (Some(namespace), Some(name)) => write!(f, " {namespace}/{name}"),
            (Some(namespace), None) => write!(f, " in namespace {namespace}"),
            (None, Some(name)) => write!(f, " {name}"),
            (None, None) => Ok(()),
        }
    }
}

/// Percent-encodes all but the unreserved characters of RFC 3986.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => escaped.push(char::from(byte)),
            other => escaped.push_str(&format!("%{other:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    const PODS: Kind = Kind::new("", "v1", "pods");
    const VPAS: Kind = Kind::new("autoscaling.k8s.io", "v1", "verticalpodautoscalers");

    #[test]
    fn paths_are_those_of_the_api() {
        let node = Call::new(Verb::Watch, PODS).with("fieldSelector", "spec.nodeName=n-1");
        assert_eq!(node.path(), "/api/v1/pods?watch=true&fieldSelector=spec.nodeName%3Dn-1");
        let list = Call::new(Verb::List, VPAS)
            .within(Some("shop"))
            .with("resourceVersion", "0");
        assert_eq!(
            list.path(),
            "/apis/autoscaling.k8s.io/v1/namespaces/shop/verticalpodautoscalers?resourceVersion=0"
        );
        let resize = Call {
            subresource: Some("resize"),
            ..Call::new(Verb::Patch, PODS).within(Some("shop")).named("web-0")
        };
        assert_eq!(resize.path(), "/api/v1/namespaces/shop/pods/web-0/resize");
        assert_eq!(resize.to_string(), "patch pods/resize shop/web-0");
    }

    #[test]
    fn a_name_cannot_leave_its_place_in_the_path() {
        let call = Call::new(Verb::Get, PODS).within(Some("a/../b")).named("x?watch=1");
        assert_eq!(call.path(), "/api/v1/namespaces/a%2F..%2Fb/pods/x%3Fwatch%3D1");
    }
}
