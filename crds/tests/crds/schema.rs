//! The generated schemas: structural, bounded, described, and good for `kubectl apply`.

use serde_json::Value;
use tailnet_crds::crd::{crd_value, schema, with_defaults};
use tailnet_crds::structural::{SchemaProblem, check};
use tailnet_crds::{Kind, crd_yaml, custom_resource_definition};

/// Calls `visit` for every schema node with its path, and whether it is inside a list item.
fn walk(node: &Value, path: &str, in_item: bool, visit: &mut impl FnMut(&Value, &str, bool)) {
    visit(node, path, in_item);
    for (name, property) in node["properties"].as_object().into_iter().flatten() {
        walk(property, &format!("{path}.{name}"), in_item, visit);
    }
    if let Some(items) = node.get("items") {
        walk(items, &format!("{path}[]"), true, visit);
    }
    if let Some(values) = node.get("additionalProperties") {
        walk(values, &format!("{path}{{}}"), in_item, visit);
    }
}

fn walk_all(mut visit: impl FnMut(&Value, &str, bool)) {
    for kind in Kind::ALL {
        walk(schema(kind), kind.as_str(), false, &mut visit);
    }
}

#[test]
fn names_match_the_kinds() {
    for kind in Kind::ALL {
        let crd = custom_resource_definition(kind);
        assert_eq!(crd.metadata.name.as_deref(), Some(kind.crd_name().as_str()));
        assert_eq!(crd.spec.names.kind, kind.as_str());
        assert_eq!(crd.spec.names.plural, kind.plural());
        assert_eq!(crd.spec.names.short_names, Some(vec![kind.short_name().to_owned()]));
        // A category that is also a resource's name breaks `kubectl get tailnet NAME`.
        assert_eq!(crd.spec.names.categories, Some(vec!["tsunaro".to_owned()]));
        assert_eq!(crd.spec.scope, format!("{:?}", kind.scope()));
        let version = &crd.spec.versions[0];
        assert_eq!(version.name, tailnet_crds::VERSION);
        assert!(
            version.subresources.as_ref().is_some_and(|sub| sub.status.is_some()),
            "{kind} has no status subresource"
        );
        assert!(
            version
                .additional_printer_columns
                .as_ref()
                .is_some_and(|columns| columns.iter().any(|c| c.name == "Ready"))
        );
        assert_eq!(kind.as_str().parse(), Ok(kind));
    }
    assert!("tailnet".parse::<Kind>().is_err());
}

#[test]
fn every_field_is_described() {
    walk_all(|node, path, _| {
        let field = path.contains('.') && !path.ends_with("[]") && !path.ends_with("{}");
        assert!(
            !field || node["description"].as_str().is_some_and(|text| text.len() > 3),
            "{path} has no description"
        );
    });
}

#[test]
fn everything_is_bounded() {
    walk_all(|node, path, _| {
        let has = |keyword: &str| node.get(keyword).is_some();
        match node["type"].as_str() {
            Some("string") => assert!(
                has("maxLength") || has("enum") || node["format"] == "date-time",
                "{path}: maxLength"
            ),
            Some("array") => assert!(has("maxItems"), "{path}: maxItems"),
            Some("object") => assert!(has("properties") || has("maxProperties"), "{path}: maxProperties"),
            Some("integer" | "number" | "boolean") => {}
            Some(other) => panic!("{path}: type {other}"),
            None => assert!(
                has("x-kubernetes-int-or-string") && has("maxLength"),
                "{path} has no type: {node}"
            ),
        }
    });
}

#[test]
fn no_default_inside_a_list_item() {
    walk_all(|node, path, in_item| assert!(!in_item || node.get("default").is_none(), "{path} has a default"));
}

#[test]
fn nothing_that_the_api_server_does_not_want() {
    walk_all(|node, path, _| {
        for keyword in ["nullable", "title", "oneOf", "anyOf", "allOf", "$ref", "const"] {
            assert!(node.get(keyword).is_none(), "{path} has {keyword}: {node}");
        }
    });
}

#[test]
fn lists_with_keys_are_maps() {
    for (kind, path, key) in [
        (Kind::TailnetEgress, "/properties/spec/properties/targets", "name"),
        (Kind::TailnetIngress, "/properties/spec/properties/exposes", "name"),
        (Kind::TailnetGateway, "/properties/spec/properties/forwards", "name"),
    ] {
        let node = schema(kind).pointer(path).expect("a field");
        assert_eq!(node["x-kubernetes-list-type"], "map", "{path}");
        assert_eq!(node["x-kubernetes-list-map-keys"][0], key, "{path}");
    }
    for kind in Kind::ALL {
        let conditions = schema(kind)
            .pointer("/properties/status/properties/conditions")
            .expect("conditions");
        assert_eq!(conditions["x-kubernetes-list-type"], "map");
        assert_eq!(conditions["x-kubernetes-list-map-keys"][0], "type");
    }
}

#[test]
fn documented_defaults() {
    let stored = with_defaults(Kind::TailnetGateway, &serde_json::json!({ "spec": { "routes": {} } }));
    let spec = &stored["spec"];
    assert_eq!(spec["suspend"], true);
    assert_eq!(spec["deletionPolicy"], "Retain");
    assert_eq!(spec["tags"], serde_json::json!(["tag:fabric"]));
    assert_eq!(spec["replicas"], 1);
    assert_eq!(spec["routes"]["advertiseEgressTargets"], true);
    let stored = with_defaults(Kind::Tailnet, &serde_json::json!({ "spec": { "policy": {} } }));
    assert_eq!(stored["spec"]["policy"]["mode"], "DryRun");
    for kind in [Kind::TailnetEgress, Kind::TailnetIngress] {
        assert_eq!(
            with_defaults(kind, &serde_json::json!({ "spec": {} }))["spec"]["replicas"],
            1
        );
    }
}

#[test]
fn generation_is_deterministic_and_committed() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("yaml");
    for (name, text) in crd_yaml() {
        assert!(text.starts_with("# generated by cargo xtask gen"), "{name}");
        // The annotation of a client-side apply holds the whole object and may have 256 KiB.
        assert!(text.len() < 200_000, "{name} has {} bytes", text.len());
        let committed = std::fs::read_to_string(folder.join(&name)).expect("run cargo xtask gen");
        assert!(committed == text, "{name} is out of date: run cargo xtask gen");
        let read: Value = serde_saphyr::from_str(&text).expect("YAML");
        let kind: Kind = read["spec"]["names"]["kind"]
            .as_str()
            .expect("a kind")
            .parse()
            .expect("a kind");
        assert!(&read == crd_value(kind), "{name} does not read back as it was");
    }
}

#[test]
fn structural_check_finds_what_the_api_server_would() {
    let errors = check(
        Kind::TailnetEgress,
        &serde_json::json!({
            "apiVersion": tailnet_crds::API_VERSION, "kind": "TailnetEgress", "metadata": { "name": "x" },
            "spec": {
                "consumerNamespaces": ["a", 7],
                "targets": [
                    { "name": "db", "adress": "192.0.2.1", "port": 70000, "protocol": "SCTP" },
                    { "name": "db", "address": "", "port": 1 },
                ],
                "replicas": 0,
            },
            "extra": {},
        }),
    );
    let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "extra: unknown field",
            "spec.consumerNamespaces[1]: must be of type string",
            "spec.targets[0].adress: unknown field",
            "spec.targets[0].port: must be at most 65535",
            "spec.targets[0].protocol: must be one of TCP, UDP",
            "spec.targets[0].address: Required value",
            "spec.targets[1].address: must be at least 1 characters long",
            "spec.targets[1]: must not repeat a key",
            "spec.replicas: must be at least 1",
            "spec.tailnetRef: Required value",
        ]
    );
    let known = errors.iter().find_map(|error| match &error.problem {
        SchemaProblem::UnknownField(known) if error.path.ends_with("adress") => Some(known),
        _ => None,
    });
    assert!(known.is_some_and(|known| known.iter().any(|name| name == "address")));
}

#[test]
fn reference_pages_are_committed() {
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference");
    for (name, text) in [
        ("crds.md", tailnet_crds::reference_md()),
        ("conditions.md", tailnet_crds::conditions_md()),
    ] {
        let committed = std::fs::read_to_string(docs.join(name)).expect("run cargo xtask gen");
        assert!(committed == text, "{name} is out of date: run cargo xtask gen");
    }
}

/// The operator's source decides: what it names is set, and so are the states of targets, which are reasons as they are.
#[test]
fn reasons_say_whether_they_are_set() {
    fn read(folder: &std::path::Path, text: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() {
                read(&path, text);
            } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
                text.push_str(&std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut operator = String::new();
    read(&root.join("../operator/src"), &mut operator);
    let named: std::collections::BTreeSet<&str> = operator
        .split("reason::")
        .skip(1)
        .filter_map(|rest| rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next())
        .collect();
    let table = std::fs::read_to_string(root.join("src/conditions.rs")).unwrap();
    let states = ["NotAdvertised", "NotApproved", "NoGrant", "NotServing", "DialFailed"];
    let mut seen = 0;
    for row in tailnet_crds::conditions::REASONS {
        let definition = format!(" = \"{}\", &[", row.reason);
        let line = table.lines().find(|line| line.contains(&definition)).unwrap();
        let name = line.split(" = ").next().unwrap().trim().trim_start_matches("@later ");
        let set = named.contains(name) || states.contains(&row.reason);
        assert_eq!(row.set, set, "{}: put or take away @later", row.reason);
        seen += 1;
    }
    assert!(seen > 50);
}

#[test]
fn reasons_are_known_once_and_used() {
    let all: Vec<_> = Kind::ALL
        .into_iter()
        .flat_map(tailnet_crds::conditions::conditions_of)
        .collect();
    let mut seen = std::collections::BTreeSet::new();
    for row in tailnet_crds::conditions::REASONS {
        assert!(seen.insert(row.reason), "{} is there twice", row.reason);
        assert!(
            row.reason.chars().all(|c| c.is_ascii_alphanumeric())
                && row.reason.starts_with(|c: char| c.is_ascii_uppercase())
        );
        assert!(
            !row.conditions.is_empty() && row.meaning.ends_with('.'),
            "{}",
            row.reason
        );
        assert!(
            row.conditions.iter().all(|condition| all.contains(&condition)),
            "{}",
            row.reason
        );
        assert_eq!(
            row.fix.is_empty(),
            row.turn == tailnet_crds::Turn::Done,
            "{}: there is something to do exactly when it is somebody's turn",
            row.reason
        );
    }
    for condition in all {
        let reasons = tailnet_crds::conditions::REASONS
            .iter()
            .filter(|row| row.conditions.contains(condition));
        assert!(reasons.count() > 0, "{condition} has no reason");
    }
}
