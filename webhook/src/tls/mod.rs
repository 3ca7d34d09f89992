//! The webhook's own certificates: a CA in a Secret ([`authority`]), a leaf per replica in memory ([`source`]), the CA
//! certificates in both webhook configurations ([`inject`]), and the loop that keeps all three true ([`keeper`]).

pub mod authority;
pub mod inject;
pub mod keeper;
pub mod source;
