//! From paths to lines: plain or gzip, however long, whatever a log collector put in front.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

/// Longest line that is looked at; an audit event with two objects has at most a few MiB.
pub const MAX_LINE: usize = 16 * 1024 * 1024;

/// A log cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// It cannot be opened.
    #[error("cannot open {path}: {source}")]
    Open {
        /// The path.
        path: String,
        /// The system's words.
        source: io::Error,
    },
    /// Reading broke off; what came before counts.
    #[error("{path}: reading broke off after line {line}: {source}")]
    Read {
        /// The path.
        path: String,
        /// Lines that were read.
        line: u64,
        /// The system's or the decompressor's words.
        source: io::Error,
    },
}

/// A piece of a log.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'l> {
    /// A line without its end.
    Line(&'l str),
    /// A line that is no text or longer than [`MAX_LINE`].
    Unreadable(&'static str),
}

/// Gives every line of `path` (`-`: standard input) to `each`, with its number.
///
/// # Errors
/// When it cannot be opened, or reading breaks off (a gzip file that is cut).
pub fn lines(path: &Path, each: impl FnMut(u64, Piece<'_>)) -> Result<(), InputError> {
    let name = path.display().to_string();
    let result = if path == Path::new("-") {
        from(io::stdin().lock(), each)
    } else {
        let file = File::open(path).map_err(|source| InputError::Open {
            path: name.clone(),
            source,
        })?;
        from(BufReader::with_capacity(256 * 1024, file), each)
    };
    result.map_err(|(line, source)| InputError::Read {
        path: name,
        line,
        source,
    })
}

/// Every line of a reader; gzip is known by its first two bytes.
fn from(mut reader: impl BufRead, each: impl FnMut(u64, Piece<'_>)) -> Result<(), (u64, io::Error)> {
    let start = reader.fill_buf().map_err(|error| (0, error))?;
    if start.starts_with(&[0x1f, 0x8b]) {
        each_line(BufReader::with_capacity(256 * 1024, MultiGzDecoder::new(reader)), each)
    } else {
        each_line(reader, each)
    }
}

fn each_line(mut reader: impl BufRead, mut each: impl FnMut(u64, Piece<'_>)) -> Result<(), (u64, io::Error)> {
    let (mut number, mut bytes) = (0, Vec::new());
    loop {
        bytes.clear();
        let limit = MAX_LINE as u64 + 1;
        let read = (&mut reader).take(limit).read_until(b'\n', &mut bytes);
        if read.map_err(|error| (number, error))? == 0 {
            return Ok(());
        }
        number += 1;
        if bytes.len() > MAX_LINE && bytes.last() != Some(&b'\n') {
            skip_line(&mut reader).map_err(|error| (number, error))?;
            each(number, Piece::Unreadable("is longer than 16 MiB"));
            continue;
        }
        match std::str::from_utf8(&bytes) {
            Ok(text) => each(number, Piece::Line(text.trim_end_matches(['\n', '\r']))),
            Err(_) => each(number, Piece::Unreadable("is no UTF-8 text")),
        }
    }
}

fn skip_line(reader: &mut impl BufRead) -> io::Result<()> {
    loop {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            return Ok(());
        }
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(buffer.len(), |at| at + 1);
        reader.consume(taken);
        if end.is_some() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::{MAX_LINE, Piece, from};

    fn read(bytes: &[u8]) -> (Vec<(u64, String)>, bool) {
        let mut seen = Vec::new();
        let ended = from(bytes, |number, piece| {
            let text = match piece {
                Piece::Line(text) => text.to_owned(),
                Piece::Unreadable(why) => format!("unreadable: {why}"),
            };
            seen.push((number, text));
        });
        (seen, ended.is_ok())
    }

    fn gzip(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn lines_end_as_they_like() {
        let (seen, whole) = read(b"a\r\n\nb");
        assert_eq!(seen, [(1, "a".into()), (2, String::new()), (3, "b".into())]);
        assert!(whole);
        assert_eq!(read(b"").0, []);
    }

    #[test]
    fn gzip_is_opened_also_when_it_was_joined() {
        let mut both = gzip("a\n");
        both.extend(gzip("b\n"));
        assert_eq!(read(&both), (vec![(1, "a".into()), (2, "b".into())], true));
        let (_, whole) = read(&both[..both.len() - 5]);
        assert!(!whole, "a cut file is said");
    }

    #[test]
    fn a_line_without_an_end_eats_no_memory_and_hides_no_other() {
        let mut bytes = vec![b'x'; MAX_LINE + 10];
        bytes.extend(b"\nnext\n\xff\n");
        let (seen, _) = read(&bytes);
        assert_eq!(
            seen,
            [
                (1, "unreadable: is longer than 16 MiB".into()),
                (2, "next".into()),
                (3, "unreadable: is no UTF-8 text".into())
            ]
        );
    }
}
