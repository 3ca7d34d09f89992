//! From the snapshot to the claims of every Tailnet: what each object wants, and whether it may.

use std::collections::BTreeMap;

use tailnet_crds::Kind;

use crate::claims::{Claim, ClaimKey, Claims, Want, resolve_with_reserved};
use crate::guard_verdict::{Verdict, guard_verdict};
use crate::index::claim_keys;
use crate::object::Object;
use crate::snapshot::Snapshot;

/// The claims of every Tailnet that has members or a record, decided anew from the snapshot's records. `now` is the time
/// (RFC 3339 UTC) since when new claims hold. The leading operator writes the result; it must have complete lists.
///
/// An object gets nothing while it is being deleted, while its Tailnet does not exist (it keeps what it has), or while a
/// rule denies it for another reason than a holder: a security rule takes away what it has, any other (the organisation's
/// policies included) lets it keep that.
///
/// What a restored record reserves stays with a holder that is not back, for its time; once the object of that name is
/// there, it has what it asks for and nothing else.
pub fn resolve_claims(snapshot: &Snapshot, now: &str) -> BTreeMap<String, Claims> {
    let mut wants: BTreeMap<String, Vec<Want>> = snapshot
        .all_claims()
        .map(|(name, _)| (name.to_owned(), Vec::new()))
        .collect();
    for kind in [
        Kind::TailnetEgress,
        Kind::TailnetIngress,
        Kind::TailnetSite,
        Kind::TailnetGateway,
    ] {
        for object in snapshot.list(kind) {
            if let Some((tailnet, mut wanted)) = wanted_by(object, snapshot) {
                wants.entry(tailnet).or_default().append(&mut wanted);
            }
        }
    }

    let is_away = |tailnet: &str, claim: &Claim| {
        let kind = Kind::ALL.into_iter().find(|kind| kind.as_str() == claim.kind);
        let there = kind.is_some_and(|kind| snapshot.get(kind, claim.namespace.as_deref(), &claim.name).is_some());
        // Which names an object has is known with its Tailnet only.
        !there || snapshot.get(Kind::Tailnet, None, tailnet).is_none()
    };

    // Services share the operator namespace: they are decided once for all Tailnets.
    let is_service = |want: &Want| matches!(want.key, ClaimKey::Service(_));
    let mut before = Claims::empty();
    let mut recorded_by: BTreeMap<&str, &str> = BTreeMap::new();
    for (tailnet, claims) in snapshot.all_claims() {
        let services = claims.claims.iter().filter(|(key, _)| key.starts_with("service:"));
        recorded_by.extend(services.clone().map(|(key, _)| (key.as_str(), tailnet)));
        before
            .claims
            .extend(services.map(|(key, claim)| (key.clone(), claim.clone())));
    }
    let service_wants: Vec<Want> = wants
        .values()
        .flatten()
        .filter(|want| is_service(want))
        .cloned()
        .collect();
    let of = |key: &str| recorded_by.get(key).copied().unwrap_or_default();
    let services = resolve_with_reserved(&before, &service_wants, now, |key, claim| {
        is_away(of(&key.to_string()), claim)
    });

    wants
        .into_iter()
        .map(|(tailnet, wants)| {
            let (service_wants, others): (Vec<_>, Vec<_>) = wants.into_iter().partition(is_service);
            let empty = Claims::empty();
            let before = snapshot.claims(&tailnet).unwrap_or(&empty);
            let mut claims = resolve_with_reserved(before, &others, now, |key, claim| {
                !matches!(key, ClaimKey::Service(_)) && is_away(&tailnet, claim)
            });
            let reserved = services
                .claims
                .iter()
                .filter(|(key, claim)| claim.reserved_until.is_some() && of(key) == tailnet);
            claims
                .claims
                .extend(reserved.map(|(key, claim)| (key.clone(), claim.clone())));
            for want in service_wants {
                if let Some(claim) = services.holder(&want.key)
                    && claim.is_of(&want.holder(), want.uid.as_deref())
                {
                    claims.claims.insert(want.key.to_string(), claim.clone());
                }
            }
            (tailnet, claims)
        })
        .collect()
}

fn wanted_by(object: &Object, snapshot: &Snapshot) -> Option<(String, Vec<Want>)> {
    if object.deleting {
        return None;
    }
    let tailnet = object.tailnet_name()?;
    let spec = snapshot
        .get(Kind::Tailnet, None, tailnet)
        .filter(|tailnet| !tailnet.deleting);
    let keys = claim_keys(object, spec.and_then(|tailnet| tailnet.tailnet()));
    let has = |key: &ClaimKey| {
        let claim = snapshot.claims(tailnet).and_then(|claims| claims.holder(key));
        claim.is_some_and(|claim| claim.is_of(&object.reference(), object.uid.as_deref()))
    };
    // Who holds what is decided here, so a denial that rests on a holder does not count. Whoever has all that he wants is not
    // asked for again.
    let keep_only = match guard_verdict(
        object,
        snapshot,
        |finding| finding.holder.is_none(),
        || spec.is_some() && !keys.iter().all(has),
    ) {
        Verdict::Withdraw(_) => return None,
        Verdict::Freeze(_) => true,
        Verdict::Valid => spec.is_none(),
    };
    let wants = keys
        .into_iter()
        .map(|key| Want {
            key,
            kind: object.kind,
            namespace: object.namespace.clone(),
            name: object.name.clone(),
            uid: object.uid.clone(),
            created: object.created.clone(),
            keep_only,
        })
        .collect();
    Some((tailnet.to_owned(), wants))
}
