//! One request to the API server as data: verb, kind, scope and parameters → path and query. Pure.

use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// All but the unreserved characters of RFC 3986.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

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
    pub const fn new(group: &'static str, version: &'static str, plural: &'static str) -> Self {
        Self { group, version, plural }
    }
}

/// A verb of RBAC. Displays as its name in RBAC and in metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Patch,
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
    /// The parameters, escaped, with the `?` before the first.
    query: String,
}

impl Call {
    /// A request for a kind in all namespaces.
    pub fn new(verb: Verb, kind: Kind) -> Self {
        let call = Self {
            verb,
            kind,
            namespace: None,
            name: None,
            subresource: None,
            query: String::new(),
        };
        match verb {
            Verb::Watch => call.with("watch", "true"),
            Verb::Get | Verb::List | Verb::Create | Verb::Patch => call,
        }
    }

    /// A patch of a pod's subresource.
    pub(super) fn patch_pod(namespace: &str, name: &str, subresource: &'static str) -> Self {
        let pod = Self::new(Verb::Patch, Kind::new("", "v1", "pods"));
        Self {
            subresource: Some(subresource),
            ..pod.within(Some(namespace)).named(name)
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
    pub fn with(mut self, parameter: &str, value: &str) -> Self {
        let separator = if self.query.is_empty() { '?' } else { '&' };
        let value = utf8_percent_encode(value, ESCAPED);
        self.query += &format!("{separator}{parameter}={value}");
        self
    }

    /// The resource as RBAC names it: `pods`, `pods/resize`.
    pub fn resource(&self) -> String {
        let subresource = self.subresource.map(|subresource| format!("/{subresource}"));
        self.kind.plural.to_owned() + &subresource.unwrap_or_default()
    }

    pub(super) fn path(&self) -> String {
        let Kind { group, version, plural } = self.kind;
        let root = if group.is_empty() { "/api" } else { "/apis" };
        let namespace = self.namespace.as_deref();
        let segments = [
            Some(group).filter(|group| !group.is_empty()),
            Some(version),
            namespace.and(Some("namespaces")),
            namespace,
            Some(plural),
            self.name.as_deref(),
            self.subresource,
        ];
        let escaped = |segment| format!("/{}", utf8_percent_encode(segment, ESCAPED));
        let path: String = segments.into_iter().flatten().map(escaped).collect();
        format!("{root}{path}{}", self.query)
    }
}

/// `list pods`, `get replicasets shop/web`.
impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource())?;
        match (&self.namespace, &self.name) {
            (Some(namespace), Some(name)) => write!(f, " {namespace}/{name}"),
            (Some(namespace), None) => write!(f, " in namespace {namespace}"),
            (None, Some(name)) => write!(f, " {name}"),
            (None, None) => Ok(()),
        }
    }
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
