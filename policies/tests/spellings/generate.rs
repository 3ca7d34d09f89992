//! Spellings of addresses, networks and names: right ones, and what becomes of them in a few steps.

/// A generator that gives the same texts every time (splitmix64).
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn one<'t, T>(&mut self, of: &'t [T]) -> &'t T {
        &of[self.below(of.len())]
    }
}

/// One text: something right, changed in up to four steps.
pub fn spelling(dice: &mut Dice) -> String {
    let mut text = match dice.below(12) {
        0..=3 => v4(dice),
        4..=5 => v6(dice),
        6..=7 => network(dice),
        _ => name(dice),
    };
    for _ in 0..*dice.one(&[0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 4]) {
        text = change(&text, dice);
    }
    text
}

fn octet(dice: &mut Dice) -> usize {
    match dice.below(4) {
        0 => *dice.one(&[0, 1, 7, 8, 9, 10, 64, 77, 100, 127, 169, 192, 224, 254, 255]),
        1 => dice.below(300),
        _ => dice.below(256),
    }
}

fn v4(dice: &mut Dice) -> String {
    let parts: Vec<String> = (0..4).map(|_| octet(dice).to_string()).collect();
    parts.join(".")
}

fn v6(dice: &mut Dice) -> String {
    if dice.below(8) == 0 {
        return dice
            .one(&[
                "::",
                "::1",
                "fe80::1",
                "fd7a:115c:a1e0::1",
                "ff02::1",
                "2001:db8::",
                "::ffff:0:0",
            ])
            .to_string();
    }
    if dice.below(6) == 0 {
        let head = *dice.one(&[
            "::ffff:",
            "::",
            "64:ff9b::",
            "::ffff:0:",
            "0:0:0:0:0:ffff:",
            "2001:db8::",
        ]);
        return format!("{head}{}", v4(dice));
    }
    let groups: Vec<String> = (0..8)
        .map(|_| match dice.below(3) {
            0 => "0".to_owned(),
            1 => format!("{:x}", dice.below(0x10000)),
            _ => format!("{:x}", dice.below(32)),
        })
        .collect();
    match dice.below(3) {
        // As written out.
        0 => groups.join(":"),
        // Shortened somewhere, right or not.
        _ => {
            let from = dice.below(8);
            let to = from + 1 + dice.below(8 - from);
            format!("{}::{}", groups[..from].join(":"), groups[to..].join(":"))
        }
    }
}

fn network(dice: &mut Dice) -> String {
    let (address, bits) = match dice.below(3) {
        0 => (v6(dice), 129),
        _ => (v4(dice), 33),
    };
    let length = dice.below(bits + 2);
    let network = format!("{address}/{length}");
    match network.parse::<ipnet::IpNet>() {
        Ok(net) if dice.below(3) > 0 => net.trunc().to_string(),
        _ => network,
    }
}

fn name(dice: &mut Dice) -> String {
    const LABELS: &[&str] = &[
        "a",
        "db",
        "example",
        "net",
        "x-1",
        "1st",
        "0x1f",
        "0x",
        "10",
        "08",
        "xn--bcher-kva",
        "xn--p1ai",
        "xn--a",
        "xn--",
        "bücher",
        "straße",
        "ｆｏｏ",
        "рф",
        "faß",
        "İ",
        "ſ",
        "K",
        "a--b",
        "-a",
        "a-",
        "a_b",
        "localhost",
        "1e3",
        "0b1",
        "א",
        "a\u{200d}b",
        "a\u{ad}b",
        "☃",
        "xn--n3h",
        "xn--strae-oqa",
        "xn--fa-hia",
    ];
    const PLAIN: &[&str] = &[
        "a",
        "db",
        "example",
        "net",
        "x-1",
        "1st",
        "org",
        "host-7",
        "xn--bcher-kva",
        "a--b",
    ];
    let strange = dice.below(3) == 0;
    let mut labels: Vec<String> = (0..1 + dice.below(4))
        .map(|_| dice.one(if strange { LABELS } else { PLAIN }).to_string())
        .collect();
    match dice.below(12) {
        0 => labels.push("l".repeat(61 + dice.below(5))),
        1 => {
            let long = "m".repeat(50);
            labels = vec![long; 4 + dice.below(2)];
            labels.push("n".repeat(45 + dice.below(8)));
        }
        _ => {}
    }
    labels.join(*dice.one(&[".", ".", ".", ".", ".", "。", "．", "｡"]))
}

/// The start and end of every run of ASCII digits.
fn numbers(text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut start = None;
    for (at, c) in text.char_indices().chain([(text.len(), ' ')]) {
        match (c.is_ascii_digit(), start) {
            (true, None) => start = Some(at),
            (false, Some(from)) => {
                found.push((from, at));
                start = None;
            }
            _ => {}
        }
    }
    found
}

fn change(text: &str, dice: &mut Dice) -> String {
    match dice.below(12) {
        0 | 1 => change_number(text, dice),
        2 => shorter(text, dice),
        3 => {
            let space = *dice.one(&[
                " ", "\t", "\n", "\r\n", "\u{a0}", "\u{3000}", "\u{200b}", "\u{feff}", "\0", "  ",
            ]);
            match dice.below(3) {
                0 => format!("{space}{text}"),
                1 => format!("{text}{space}"),
                _ => insert(text, space, dice),
            }
        }
        4 => {
            let upper = dice.below(2) == 0;
            let at = dice.below(text.chars().count().max(1));
            let each = |(i, c): (usize, char)| if upper || i == at { c.to_ascii_uppercase() } else { c };
            text.chars().enumerate().map(each).collect()
        }
        5 => format!("{text}{}", dice.one(&[".", "..", "。", ".．"])),
        6 => format!(
            "{text}{}",
            dice.one(&["%eth0", "%1", "%", "%25eth0", "/32", "/", "/024", "/0", "/128", "/96"])
        ),
        7 => format!(
            "{}{text}",
            dice.one(&["::ffff:", "::FFFF:", "::", "[", "0", "+", "-", "0x", "64:ff9b::"])
        ),
        8 => unicode(text, dice),
        9 => {
            let piece = *dice.one(&[
                "0", "1", "9", "f", ".", ":", "-", "_", "/", "x", "%", "*", "g", "::", ",", "\u{301}",
            ]);
            insert(text, piece, dice)
        }
        10 => {
            let at = dice.below(text.chars().count().max(1));
            text.chars()
                .enumerate()
                .filter(|(i, _)| *i != at)
                .map(|(_, c)| c)
                .collect()
        }
        _ => expand(text),
    }
}

fn insert(text: &str, piece: &str, dice: &mut Dice) -> String {
    let at = dice.below(text.chars().count() + 1);
    let byte = text.char_indices().nth(at).map_or(text.len(), |(byte, _)| byte);
    format!("{}{piece}{}", &text[..byte], &text[byte..])
}

/// One number in another notation.
fn change_number(text: &str, dice: &mut Dice) -> String {
    let numbers = numbers(text);
    if numbers.is_empty() {
        return text.to_owned();
    }
    let (from, to) = *dice.one(&numbers);
    let Ok(value) = text[from..to].parse::<u64>() else {
        return text.to_owned();
    };
    let new = match dice.below(7) {
        0 => format!("0{value}"),
        1 => format!("{}{value}", "0".repeat(1 + dice.below(20))),
        2 => format!("0x{value:x}"),
        3 => format!("0X{value:X}"),
        4 => format!("0{value:o}"),
        5 => format!("{}", value + 256),
        _ => format!("+{value}"),
    };
    format!("{}{new}{}", &text[..from], &text[to..])
}

/// An IPv4 address in fewer parts, as C libraries read it.
fn shorter(text: &str, dice: &mut Dice) -> String {
    let (address, rest) = text
        .split_once('/')
        .map_or((text, None), |(address, rest)| (address, Some(rest)));
    let parts: Option<Vec<u32>> = address
        .split('.')
        .map(|part| part.parse().ok().filter(|value| *value < 256))
        .collect();
    let Some([a, b, c, d]) = parts.as_deref() else {
        return text.to_owned();
    };
    let whole = a << 24 | b << 16 | c << 8 | d;
    let short = match dice.below(5) {
        0 => format!("{a}.{b}.{}", c << 8 | d),
        1 => format!("{a}.{}", b << 16 | c << 8 | d),
        2 => whole.to_string(),
        3 => format!("{whole:#x}"),
        _ => format!("0{whole:o}"),
    };
    rest.map_or(short.clone(), |rest| format!("{short}/{rest}"))
}

/// Some ASCII characters as others that look alike or that IDNA maps to them.
fn unicode(text: &str, dice: &mut Dice) -> String {
    let kind = dice.below(5);
    let every = dice.below(2) == 0;
    let at = dice.below(text.chars().count().max(1));
    let other = |c: char| match (kind, c) {
        (0, '0'..='9') => char::from_u32('０' as u32 + (c as u32 - '0' as u32)),
        (1, '0'..='9') => char::from_u32('\u{660}' as u32 + (c as u32 - '0' as u32)),
        (2, 'a'..='z') => char::from_u32('ａ' as u32 + (c as u32 - 'a' as u32)),
        (3, '.') => Some('。'),
        (3, 's') => Some('ſ'),
        (3, 'k') => Some('\u{212a}'),
        (4, 'a') => Some('а'),
        (4, '1') => Some('¹'),
        (4, '2') => Some('②'),
        (4, ':') => Some('：'),
        (4, '/') => Some('／'),
        _ => None,
    };
    let each = |(i, c): (usize, char)| if every || i == at { other(c).unwrap_or(c) } else { c };
    text.chars().enumerate().map(each).collect()
}

/// An IPv6 address with all its zeros.
fn expand(text: &str) -> String {
    let (address, rest) = text
        .split_once('/')
        .map_or((text, None), |(address, rest)| (address, Some(rest)));
    let Ok(address) = address.parse::<std::net::Ipv6Addr>() else {
        return text.to_owned();
    };
    let groups: Vec<String> = address.segments().iter().map(|group| format!("{group:04x}")).collect();
    let long = groups.join(":");
    rest.map_or(long.clone(), |rest| format!("{long}/{rest}"))
}
