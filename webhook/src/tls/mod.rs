//! The webhook's certificates: where they come from (our own CA in a Secret, [`authority`] and [`own`], or a Secret that
//! cert-manager or somebody else writes, [`given`]), the leaf that each replica shows ([`source`]), the CA certificates in
//! both webhook configurations ([`trusted`], [`inject`]), and the loop that keeps all of it true ([`keeper`]).

pub mod authority;
pub mod given;
pub mod inject;
pub mod keeper;
pub mod own;
pub mod source;
pub mod trusted;
