//! The names that an expression sees, as values of CEL.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use cel::objects::{Key, Map};
use cel::{Context, Value};
use serde_json::{Value as Json, json};
use tailnet_crds::{GROUP, Kind, Scope as KindScope, VERSION};

use super::meter::{MAX_STEPS, size};
use crate::object::{Object, Spec};
use crate::request::{Layer, Operation, Request};
use crate::snapshot::Snapshot;

/// A name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Name {
    /// The object as it would be, without status and managed fields.
    Object,
    /// The stored object of an update, else null.
    OldObject,
    /// What is asked for, and by whom.
    Request,
    /// The Tailnet of the object (`metadata`, `spec`); null while there is none.
    Tailnet,
    /// The other objects of the same kind in the same Tailnet: `kind`, `metadata` (name, namespace, labels), `spec`.
    Others,
    /// The namespace of the object (`metadata`: name, labels); null for cluster-scoped kinds.
    NamespaceObject,
}

impl Name {
    pub(crate) const ALL: [Self; 6] = [
        Self::Object,
        Self::OldObject,
        Self::Request,
        Self::Tailnet,
        Self::Others,
        Self::NamespaceObject,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::OldObject => "oldObject",
            Self::Request => "request",
            Self::Tailnet => "tailnet",
            Self::Others => "others",
            Self::NamespaceObject => "namespaceObject",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|name| name.as_str() == text)
    }
}

/// One object that is asked about, with what is around it.
pub(crate) struct Subject<'a> {
    pub(crate) request: &'a Request,
    /// The object that is judged: the new one, or the old one to find out what was wrong before.
    pub(crate) value: &'a Json,
    /// The same, typed.
    pub(crate) object: &'a Object,
    pub(crate) old: Option<&'a Json>,
    pub(crate) snapshot: &'a Snapshot,
}

/// Why a name has no value here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// There is no Tailnet of that name.
    Tailnet,
    /// Not all objects of the kind are known.
    Others,
    /// Namespaces are not known.
    Namespaces,
}

impl Subject<'_> {
    /// Whether a name can be given its value.
    pub(crate) fn knows(&self, name: Name) -> Result<(), Unknown> {
        match name {
            Name::Object | Name::OldObject | Name::Request => Ok(()),
            Name::Tailnet => self.tailnet().map(|_| ()).ok_or(Unknown::Tailnet),
            Name::Others if self.snapshot.is_complete(self.request.kind) => Ok(()),
            Name::Others => Err(Unknown::Others),
            Name::NamespaceObject => match &self.object.namespace {
                Some(namespace) => match self.snapshot.namespace_labels(namespace) {
                    Some(_) => Ok(()),
                    None => Err(Unknown::Namespaces),
                },
                None => Ok(()),
            },
        }
    }

    fn tailnet(&self) -> Option<&Object> {
        if self.request.kind == Kind::Tailnet {
            return Some(self.object);
        }
        let name = self.object.tailnet_name()?;
        self.snapshot
            .get(Kind::Tailnet, None, name)
            .map(Arc::as_ref)
            .filter(|tailnet| tailnet.tailnet().is_some())
    }

    /// A context with the names that are used, and the steps that it took: the other objects may be many.
    pub(crate) fn context<'r>(&self, root: &'r Context<'r>, names: &BTreeSet<Name>) -> (Context<'r>, u64) {
        let mut steps = 0;
        let mut context = root.new_inner_scope();
        for name in names {
            let value = match name {
                Name::Object => value(&seen(self.request.kind, self.value)),
                Name::OldObject => self.old.map_or(Value::Null, |old| value(&seen(self.request.kind, old))),
                Name::Request => value(&self.request_value()),
                Name::Tailnet => self.tailnet().map_or(Value::Null, |tailnet| value(&as_json(tailnet))),
                Name::Others => {
                    let others = self.others();
                    steps = size(&others, MAX_STEPS + 1);
                    others
                }
                Name::NamespaceObject => self.namespace(),
            };
            context.add_variable_from_value(name.as_str(), value);
        }
        (context, steps)
    }

    fn request_value(&self) -> Json {
        let request = self.request;
        let operation = match request.operation {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
        };
        let mut value = json!({
            "operation": operation,
            "kind": {"group": GROUP, "version": VERSION, "kind": request.kind.as_str()},
            "name": self.object.name,
            "namespace": self.object.namespace.as_deref().unwrap_or_default(),
            "dryRun": request.dry_run,
        });
        if let Some(user) = request.requester.as_ref().filter(|_| request.layer == Layer::Webhook) {
            value["userInfo"] = json!({"username": user.username, "groups": user.groups});
        }
        value
    }

    fn others(&self) -> Value {
        let tailnet = self.object.tailnet_name();
        let others = self.snapshot.list(self.request.kind).filter(|other| {
            !other.deleting
                && !other.same_as(self.object)
                && (other.kind == Kind::Tailnet || other.tailnet_name() == tailnet)
        });
        Value::List(Arc::new(others.map(|other| value(&as_json(other))).collect()))
    }

    fn namespace(&self) -> Value {
        if self.request.kind.scope() == KindScope::Cluster {
            return Value::Null;
        }
        let Some(name) = &self.object.namespace else {
            return Value::Null;
        };
        let labels = self.snapshot.namespace_labels(name).cloned().unwrap_or_default();
        value(&json!({"metadata": {"name": name, "labels": labels}}))
    }
}

/// An object of the snapshot as policies see it.
pub(crate) fn as_json(object: &Object) -> Json {
    let spec = match &object.spec {
        Ok(Spec::Tailnet(spec)) => serde_json::to_value(spec),
        Ok(Spec::Egress(spec)) => serde_json::to_value(spec),
        Ok(Spec::Ingress(spec)) => serde_json::to_value(spec),
        Ok(Spec::Site(spec)) => serde_json::to_value(spec),
        Ok(Spec::Gateway(spec)) => serde_json::to_value(spec),
        Err(_) => Ok(json!({})),
    };
    let mut metadata = json!({"name": object.name, "labels": *object.labels});
    if let Some(namespace) = &object.namespace {
        metadata["namespace"] = json!(namespace);
    }
    json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": object.kind.as_str(),
        "metadata": metadata,
        "spec": spec.unwrap_or_default(),
    })
}

/// An object of the snapshot as its own policies see it: with annotations, and as it is stored.
pub(crate) fn as_stored(object: &Object) -> Json {
    let mut json = as_json(object);
    let metadata = &mut json["metadata"];
    metadata["annotations"] = json!(*object.annotations);
    if let Some(uid) = &object.uid {
        metadata["uid"] = json!(uid);
    }
    if let Some(created) = &object.created {
        metadata["creationTimestamp"] = json!(created);
    }
    json
}

/// An object of a request as policies see it: with the schema's defaults, as the API server stores it, and without what a
/// tenant may write at will (status) or nobody reads (managed fields).
pub(crate) fn seen(kind: Kind, object: &Json) -> Json {
    let mut object = tailnet_crds::crd::with_defaults(kind, object);
    if let Some(fields) = object.as_object_mut() {
        fields.shift_remove("status");
        if let Some(metadata) = fields.get_mut("metadata").and_then(Json::as_object_mut) {
            metadata.shift_remove("managedFields");
        }
    }
    object
}

/// JSON as a value of CEL. Whole numbers are int, also where JSON knows them as unsigned.
pub(crate) fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(value), ..) => Value::Int(value),
            (None, Some(value), _) => Value::UInt(value),
            (None, None, value) => Value::Float(value.unwrap_or_default()),
        },
        Json::String(text) => Value::String(Arc::new(text.clone())),
        Json::Array(items) => Value::List(Arc::new(items.iter().map(value).collect())),
        Json::Object(fields) => {
            let map: HashMap<Key, Value> = fields
                .iter()
                .map(|(name, field)| (Key::String(Arc::new(name.clone())), value(field)))
                .collect();
            Value::Map(Map { map: Arc::new(map) })
        }
    }
}
