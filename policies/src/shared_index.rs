//! Objects by key, in a form of which a copy costs nothing: it shares what is there and keeps to itself what it changes.

use std::collections::HashMap;
use std::sync::Arc;

use crate::index::IndexKey;
use crate::object::Object;

type Lists = HashMap<IndexKey, Vec<Arc<Object>>>;

/// The objects under each key.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedIndex {
    base: Arc<Lists>,
    /// The lists that differ from `base` while a copy reads that too; an empty one says that there is nobody any more.
    own: Lists,
}

impl SharedIndex {
    /// The objects under a key.
    pub fn get(&self, key: &IndexKey) -> &[Arc<Object>] {
        let list = match self.own.is_empty() {
            true => self.base.get(key),
            false => self.own.get(key).or_else(|| self.base.get(key)),
        };
        list.map_or(&[], Vec::as_slice)
    }

    /// Changes the list of one key. Other copies do not see it.
    pub fn edit(&mut self, key: &IndexKey, change: impl FnOnce(&mut Vec<Arc<Object>>)) {
        let Self { base, own } = self;
        match Arc::get_mut(base) {
            Some(base) => {
                for (key, list) in own.drain() {
                    match list.is_empty() {
                        true => base.remove(&key),
                        false => base.insert(key, list),
                    };
                }
                let list = base.entry(key.clone()).or_default();
                change(list);
                if list.is_empty() {
                    base.remove(key);
                }
            }
            None => {
                let of_base = || base.get(key).cloned().unwrap_or_default();
                change(own.entry(key.clone()).or_insert_with(of_base));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tailnet_crds::Kind;

    use super::*;

    fn key(name: &str) -> IndexKey {
        IndexKey::Service(name.to_owned())
    }

    fn object(name: &str) -> Arc<Object> {
        Arc::new(Object::parse(
            Kind::TailnetSite,
            &json!({ "metadata": { "name": name } }),
        ))
    }

    fn names<'i>(index: &'i SharedIndex, of: &str) -> Vec<&'i str> {
        index.get(&key(of)).iter().map(|object| object.name.as_str()).collect()
    }

    #[test]
    fn a_copy_and_its_origin_do_not_see_each_others_changes() {
        let mut origin = SharedIndex::default();
        origin.edit(&key("a"), |list| list.push(object("1")));
        origin.edit(&key("b"), |list| list.push(object("2")));
        let mut copy = origin.clone();
        copy.edit(&key("a"), Vec::clear);
        copy.edit(&key("c"), |list| list.push(object("3")));
        origin.edit(&key("b"), |list| list.push(object("4")));
        assert_eq!((names(&origin, "a"), names(&copy, "a")), (vec!["1"], vec![]));
        assert_eq!((names(&origin, "b"), names(&copy, "b")), (vec!["2", "4"], vec!["2"]));
        assert_eq!((names(&origin, "c"), names(&copy, "c")), (vec![], vec!["3"]));
        // Alone again, each has what it changed, and nothing beside it.
        drop(origin);
        copy.edit(&key("b"), |list| list.push(object("5")));
        assert!(copy.own.is_empty());
        assert_eq!((names(&copy, "a"), names(&copy, "b")), (vec![], vec!["2", "5"]));
        assert_eq!(names(&copy, "c"), ["3"]);
        assert_eq!(copy.base.len(), 2, "nothing is left of an empty list");
    }
}
