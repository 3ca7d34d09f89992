//! Pieces of expressions. Macros, because `concat!` takes only literals and the table is a constant.

/// What the text is without white space around it and in lower case.
macro_rules! n {
    () => {
        "self.trim().lowerAscii()"
    };
}

/// Whether the text is a tag, spelling aside.
macro_rules! tag_readable {
    () => {
        "self.trim().lowerAscii().matches(r'^tag:[a-z][a-z0-9-]{0,123}$')"
    };
}

/// Whether the text is spelled as it should be, or cannot be read anyhow.
macro_rules! tag_canonical {
    () => {
        concat!("self == ", n!(), " || !", tag_readable!())
    };
}

/// Names what to write.
macro_rules! write_lower {
    () => {
        concat!("'is not in canonical form: write \"%s\" [ID]'.format([", n!(), "])")
    };
}

/// A DNS name in lower case, perhaps with a trailing dot.
macro_rules! name_pattern {
    () => {
        r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*"
    };
}

/// Whether the text has characters outside ASCII; then only the webhook can tell what it is.
macro_rules! foreign {
    () => {
        "self.matches(r'[^\\x00-\\x7f]')"
    };
}

/// Whether the text is a DNS name, spelling aside.
macro_rules! name_readable {
    () => {
        concat!(
            "(",
            n!(),
            ".matches(r'^",
            name_pattern!(),
            r"\.?$') && !",
            n!(),
            r".matches(r'(^|\.)([0-9]+|0x[0-9a-f]*)\.?$') && self.trim().size() <= 254)"
        )
    };
}

/// Whether the text is a DNS name of at least two labels, spelling aside.
macro_rules! long_name_readable {
    () => {
        concat!("(", name_readable!(), " && ", n!(), r".matches(r'^[^.]+\.[^.]'))")
    };
}

/// Whether the text is in lower case, in ASCII, without white space and trailing dot, be it a name or not.
macro_rules! name_spelled {
    () => {
        concat!("!", foreign!(), " && self == ", n!(), " && !self.endsWith('.')")
    };
}

/// Whether a readable DNS name is spelled as it should be.
macro_rules! name_canonical {
    () => {
        concat!(
            "!",
            foreign!(),
            " && (!",
            name_readable!(),
            " || (self == ",
            n!(),
            " && !self.endsWith('.')))"
        )
    };
}

/// Names the DNS name to write.
macro_rules! write_name {
    () => {
        concat!(
            foreign!(),
            " ? 'is not in canonical form (characters outside ASCII): write A-labels (xn--...) [ID]' : ",
            "'is not in canonical form: write \"%s\" [ID]'.format([",
            n!(),
            ".endsWith('.') ? ",
            n!(),
            ".substring(0, ",
            n!(),
            ".size() - 1) : ",
            n!(),
            "])"
        )
    };
}

/// Whether the text is an address in a spelling that Go does not read but others do.
macro_rules! ip_loose {
    () => {
        concat!(
            "(!isIP(",
            n!(),
            ") && (",
            n!(),
            r".matches(r'^(0x[0-9a-f]{1,8}|[0-9]{1,10})(\.(0x[0-9a-f]{1,8}|[0-9]{1,10})){0,3}\.?$') && (",
            n!(),
            r".matches(r'^[^.]+(\.[^.]+){0,2}\.?$') || ",
            n!(),
            ".split('.').all(p, p == '' || p.startsWith('0x') || int(p) <= 255)) || ",
            n!(),
            ".matches(r'^::ffff:[0-9a-f.:]+$') || ",
            n!(),
            ".contains('%') && isIP(",
            n!(),
            ".split('%')[0])))"
        )
    };
}

/// Whether the text is an address, spelling aside.
macro_rules! ip_readable {
    () => {
        concat!("(isIP(", n!(), ") || ", ip_loose!(), ")")
    };
}

/// Whether a readable address is spelled as it should be.
macro_rules! ip_canonical {
    () => {
        concat!("!", ip_readable!(), " || (isIP(self) && ip.isCanonical(self))")
    };
}

/// Names the address to write, where CEL can tell.
macro_rules! write_ip {
    () => {
        concat!(
            "isIP(",
            n!(),
            ") ? 'is not in canonical form: write \"%s\" [ID]'.format([string(ip(",
            n!(),
            "))]) : (",
            n!(),
            r".matches(r'^[0-9]+(\.[0-9]+){3}$')",
            " ? 'is not in canonical form (leading zeros): write \"%d.%d.%d.%d\" [ID]'.format(",
            n!(),
            ".split('.').map(p, int(p))) : ",
            "'is not in canonical form: write four decimal numbers without leading zeros, ",
            "or IPv6 as in RFC 5952 without zone [ID]')"
        )
    };
}

/// Whether the text is a network that Go reads, white space and case aside.
macro_rules! cidr_readable {
    () => {
        concat!("isCIDR(", n!(), ")")
    };
}

/// Whether a readable network is spelled as it should be and has no bits behind the prefix.
macro_rules! cidr_canonical {
    () => {
        concat!("!isCIDR(", n!(), ") || string(cidr(", n!(), ").masked()) == self")
    };
}

/// Names the network to write.
macro_rules! write_cidr {
    () => {
        concat!(
            "'is not in canonical form: write \"%s\" [ID]'.format([string(cidr(",
            n!(),
            ").masked())])"
        )
    };
}

/// Whether the text is a label as in RFC 1035.
macro_rules! label_1035 {
    () => {
        "self.matches(r'^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$')"
    };
}

/// Whether no key is the operator's.
macro_rules! foreign_keys {
    () => {
        "self.all(k, !k.startsWith('tsunaro.io/') && !k.startsWith('app.kubernetes.io/'))"
    };
}

/// Whether the image is pinned to a version or digest.
macro_rules! image_pinned {
    () => {
        r"self.matches(r'(:v?[0-9]{1,9}(\.[0-9]{1,9})+([-_+.][0-9A-Za-z_.-]+)?|@[a-z0-9]+:[0-9a-f]{32,128})$')"
    };
}

/// Whether the text is the name of an object: labels of any length.
macro_rules! object_name {
    () => {
        r"self.matches(r'^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')"
    };
}

/// Whether the text is the name of a namespace or of a port.
macro_rules! label_1123 {
    () => {
        "self.matches(r'^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')"
    };
}

/// Whether the text is a key in the data of a ConfigMap or Secret.
macro_rules! data_key {
    () => {
        r"self.matches(r'^[-._a-zA-Z0-9]+$') && self != '.' && !self.startsWith('..')"
    };
}

/// Whether the text is the kind of an object.
macro_rules! object_kind {
    () => {
        "self.matches(r'^[A-Z][a-zA-Z0-9]*$')"
    };
}

/// Texts that several kinds use.
pub(super) const NOT_AN_OBJECT: &str = "is no name that an object can have: write lower-case letters, digits, dashes and dots, beginning and ending with a letter or digit";
pub(super) const NOT_A_NAMESPACE: &str =
    "is not the name of a namespace: write at most 63 lower-case letters, digits and dashes, no dash at either end";
pub(super) const NOT_A_KEY: &str =
    "is not a key that a ConfigMap or Secret can have: write letters, digits, dashes, dots and underscores";
pub(super) const NOT_A_KIND: &str = "is not a kind such as Issuer or ClusterIssuer";
pub(super) const NOT_A_GROUP: &str = "is not an API group such as cert-manager.io";
pub(super) const NOT_CANONICAL: &str = "is not in canonical form";
pub(super) const NOT_A_TAG: &str =
    "is not a tag: write tag: and a name of lower-case letters, digits and dashes that begins with a letter";
pub(super) const NOT_A_NAME: &str = "is not a DNS name";
pub(super) const NOT_A_CIDR: &str = "is not a CIDR such as 192.0.2.0/24 or 2001:db8::/32";
pub(super) const NOT_A_1035_LABEL: &str =
    "is not a DNS-1035 label: write at most 63 lower-case letters, digits and dashes, beginning with a letter";
pub(super) const NOT_A_LABEL: &str =
    "is not a DNS label: write at most 63 lower-case letters, digits and dashes, no dash at either end";
pub(super) const IMMUTABLE: &str = "is immutable: delete the object and create it again";
pub(super) const OWN_KEY: &str = "has a key of the operator: keys below tsunaro.io/ and app.kubernetes.io/ are its own";

pub(super) use {
    cidr_canonical, cidr_readable, data_key, foreign, foreign_keys, image_pinned, ip_canonical, ip_loose, ip_readable,
    label_1035, label_1123, long_name_readable, n, name_canonical, name_pattern, name_readable, name_spelled,
    object_kind, object_name, tag_canonical, tag_readable, write_cidr, write_ip, write_lower, write_name,
};
