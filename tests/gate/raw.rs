//! Backends whose every byte the test decides, and the reading of requests that they share with the stub.

use std::io::{self, BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A request's head, as it arrived at the backend.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub method: String,
    pub target: String,
    pub token: Option<u64>,
    /// All lines as they came.
    pub lines: Vec<String>,
}

impl Request {
    pub fn field(&self, name: &str) -> Option<&str> {
        self.lines.iter().skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// Reads a head. `None`: the connection ended before one began.
pub fn read_head(reader: &mut impl BufRead) -> io::Result<Option<Request>> {
    let mut lines = Vec::new();
    loop {
        let mut line = Vec::new();
        if reader.read_until(b'\n', &mut line)? == 0 {
            return match lines.is_empty() {
                true => Ok(None),
                false => Err(io::ErrorKind::UnexpectedEof.into()),
            };
        }
        let Some(line) = line.strip_suffix(b"\r\n") else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a line that CRLF does not end",
            ));
        };
        if line.is_empty() {
            break;
        }
        lines.push(line.iter().map(|byte| char::from(*byte)).collect::<String>());
    }
    let mut words = lines[0].split(' ').map(str::to_owned);
    let mut request = Request {
        method: words.next().unwrap_or_default(),
        target: words.next().unwrap_or_default(),
        token: None,
        lines,
    };
    request.token = request
        .field("fencing-token")
        .and_then(|value| value.parse().ok());
    Ok(Some(request))
}

/// Reads the body that belongs to a head.
pub fn read_rest(reader: &mut impl BufRead, request: &Request) -> io::Result<Vec<u8>> {
    if request.field("transfer-encoding").is_none() {
        let length = request
            .field("content-length")
            .map_or(0, |value| value.parse().unwrap());
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        return Ok(body);
    }
    let mut body = Vec::new();
    loop {
        let line = read_line(reader)?;
        let size = usize::from_str_radix(&line, 16).map_err(io::Error::other)?;
        if size == 0 {
            while !read_line(reader)?.is_empty() {}
            return Ok(body);
        }
        let start = body.len();
        body.resize(start + size, 0);
        reader.read_exact(&mut body[start..])?;
        if !read_line(reader)?.is_empty() {
            return Err(io::Error::other("a chunk that CRLF does not end"));
        }
    }
}

/// Reads a whole request.
pub fn read_request(reader: &mut impl BufRead) -> io::Result<Option<(Request, Vec<u8>)>> {
    let Some(request) = read_head(reader)? else {
        return Ok(None);
    };
    let body = read_rest(reader, &request)?;
    Ok(Some((request, body)))
}

fn read_line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    match line.strip_suffix("\r\n") {
        Some(line) => Ok(line.to_owned()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// A backend that hands each connection, with its number from 0 on, to a function of the test.
#[derive(Debug)]
pub struct RawBackend {
    pub port: u16,
    connections: Arc<AtomicUsize>,
}

impl RawBackend {
    pub fn start(
        serve: impl Fn(usize, BufReader<TcpStream>, TcpStream) + Send + Sync + 'static,
    ) -> RawBackend {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        let serve = Arc::new(serve);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let number = counted.fetch_add(1, Ordering::SeqCst);
                let serve = Arc::clone(&serve);
                stream.set_nodelay(true).unwrap();
                let reader = BufReader::new(stream.try_clone().unwrap());
                std::thread::spawn(move || serve(number, reader, stream));
            }
        });
        RawBackend { port, connections }
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// Reads until the end, and says whether that was a reset.
pub fn ends_by_reset(reader: &mut impl Read) -> bool {
    let mut waste = [0; 4096];
    loop {
        match reader.read(&mut waste) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == io::ErrorKind::ConnectionReset,
        }
    }
}
