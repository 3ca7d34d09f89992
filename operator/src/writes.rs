//! How this process writes to the API server: in its own name, and never over something that it has not looked at.

use kube::ResourceExt;
use kube::api::{DeleteParams, PatchParams, PostParams, Preconditions};

use crate::settings::FIELD_MANAGER;

/// For creations and replacements.
pub fn post_params() -> PostParams {
    PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    }
}

/// For patches other than applies.
pub fn patch_params() -> PatchParams {
    PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    }
}

/// For the deletion of this very object: one that took its place is a conflict, and so is with `unchanged` one that somebody
/// has changed since.
pub fn delete_params(object: &impl ResourceExt, unchanged: bool) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions {
            uid: object.uid(),
            resource_version: object.resource_version().filter(|_| unchanged),
        }),
        ..DeleteParams::background()
    }
}

/// Whether `error` says that the object that was to be written does not exist any more.
pub fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// Whether `error` says that RBAC (or an admission policy) forbids the request.
pub fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

/// Whether `error` says that the object that was to be written does not exist any more, or that another one took its place.
pub fn is_gone_or_replaced(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 404 | 409))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Secret;
    use kube::core::Status;

    use super::*;

    #[test]
    fn a_deletion_is_of_one_object() {
        let mut secret = Secret::default();
        secret.metadata.uid = Some("u".to_owned());
        secret.metadata.resource_version = Some("7".to_owned());
        let of = |unchanged| delete_params(&secret, unchanged).preconditions.unwrap();
        assert_eq!(
            (of(false).uid.as_deref(), of(false).resource_version),
            (Some("u"), None)
        );
        assert_eq!(of(true).resource_version.as_deref(), Some("7"));
    }

    #[test]
    fn what_is_gone_is_told_from_what_was_refused() {
        let error = |code| kube::Error::Api(Box::new(Status::failure("", "").with_code(code)));
        assert!(is_gone(&error(404)) && !is_gone(&error(409)));
        assert!(is_gone_or_replaced(&error(404)) && is_gone_or_replaced(&error(409)));
        assert!(!is_gone_or_replaced(&error(403)));
    }
}
