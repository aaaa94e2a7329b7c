//! TLS over real sockets, and files that change.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::net::TcpStream;

use super::{ClientFiles, ClientTls, Refreshed, ServerFiles, ServerTls, Watched};
use crate::base::Buf;
use crate::net::Stream;

/// A folder with an authority and a certificate of its for `localhost` and both loopback addresses.
struct Folder {
    folder: tempfile::TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Folder {
    fn new() -> Folder {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = Folder {
            folder: tempfile::tempdir().unwrap(),
            authority,
        };
        std::fs::write(folder.at("ca.pem"), folder.authority.pem()).unwrap();
        let (cert, key) = folder.pair();
        std::fs::write(folder.at("cert.pem"), cert).unwrap();
        std::fs::write(folder.at("key.pem"), key).unwrap();
        folder
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn pair(&self) -> (String, String) {
        let names = ["localhost", "127.0.0.1", "::1"].map(String::from);
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(names).unwrap();
        let cert = params.signed_by(&key, &self.authority).unwrap();
        (cert.pem(), key.serialize_pem())
    }

    fn server(&self) -> ServerTls {
        ServerTls::load(self.server_files(), &[b"http/1.1"]).unwrap()
    }

    fn server_files(&self) -> ServerFiles {
        ServerFiles {
            cert: self.at("cert.pem"),
            key: self.at("key.pem"),
            client_ca: None,
        }
    }

    fn client(&self) -> ClientTls {
        let files = ClientFiles {
            ca: Some(self.at("ca.pem")),
            pair: None,
        };
        ClientTls::load(files, "localhost").unwrap()
    }

    /// Both ends of a connection: ours as the client, and a blocking one as the server.
    async fn pair_of_ends(&self) -> (Stream, Blocking) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let config = self.server().held.get();
        let far = tokio::task::spawn_blocking(move || Blocking::accept(&listener, config));
        let socket = TcpStream::connect(address).await.unwrap();
        socket.set_nodelay(true).unwrap();
        let near = self.client().connect(socket).await.unwrap();
        (near, far.await.unwrap())
    }
}

/// The far end, by a blocking socket.
struct Blocking(rustls::StreamOwned<rustls::ServerConnection, std::net::TcpStream>);

impl Blocking {
    fn accept(listener: &TcpListener, config: Arc<rustls::ServerConfig>) -> Blocking {
        let (mut socket, _) = listener.accept().unwrap();
        let mut tls = rustls::ServerConnection::new(config).unwrap();
        while tls.is_handshaking() || tls.wants_write() {
            tls.complete_io(&mut socket).unwrap();
        }
        Blocking(rustls::StreamOwned::new(tls, socket))
    }
}

async fn read(stream: &mut Stream, buf: &mut Buf) -> io::Result<usize> {
    loop {
        std::future::poll_fn(|cx| stream.poll_read_ready(cx)).await;
        match stream.try_read(buf, usize::MAX) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            read => return read,
        }
    }
}

async fn write_all(stream: &mut Stream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match stream.try_write(bytes) {
            Ok(taken) => bytes = &bytes[taken..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::future::poll_fn(|cx| stream.poll_write_ready(cx)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 % 251) as u8).collect()
}

const SIZES: [usize; 17] = [
    1, 2, 200, 4095, 4096, 4097, 16_383, 16_384, 16_385, 32_768, 49_153, 65_535, 65_536, 65_537, 131_071,
    131_073, 1_000_003,
];

#[tokio::test]
async fn bytes_of_every_size_arrive_unchanged_both_ways() {
    let folder = Folder::new();
    let (mut near, mut far) = folder.pair_of_ends().await;
    let echo = tokio::task::spawn_blocking(move || {
        for size in SIZES {
            let mut body = vec![0; size];
            far.0.read_exact(&mut body).unwrap();
            far.0.write_all(&body).unwrap();
            far.0.flush().unwrap();
        }
        far
    });
    for size in SIZES {
        let body = pattern(size);
        write_all(&mut near, &body).await;
        let mut back = Buf::default();
        while back.len() < size {
            assert!(read(&mut near, &mut back).await.unwrap() > 0);
        }
        assert_eq!(back.filled(), body, "{size}");
    }
    let _far = echo.await.unwrap();
}

#[tokio::test]
async fn an_end_without_tls_own_word_is_no_end() {
    let folder = Folder::new();
    let (mut near, mut far) = folder.pair_of_ends().await;
    far.0.write_all(b"half").unwrap();
    far.0.flush().unwrap();
    // The socket ends, and TLS has not.
    far.0.sock.shutdown(std::net::Shutdown::Write).unwrap();
    let mut came = Buf::default();
    assert_eq!(read(&mut near, &mut came).await.unwrap(), 4);
    let error = read(&mut near, &mut came).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn an_end_in_order_is_heard_behind_the_last_byte() {
    let folder = Folder::new();
    let (mut near, mut far) = folder.pair_of_ends().await;
    far.0.write_all(b"all").unwrap();
    far.0.conn.send_close_notify();
    far.0.flush().unwrap();
    let mut came = Buf::default();
    assert_eq!(read(&mut near, &mut came).await.unwrap(), 3);
    assert_eq!(read(&mut near, &mut came).await.unwrap(), 0);
    assert!(
        !near.is_silent(true),
        "a connection that was ended is not used again"
    );
}

#[tokio::test]
async fn tickets_and_new_keys_leave_an_idle_connection_usable() {
    let folder = Folder::new();
    // The tickets of the handshake are on their way already.
    let (mut near, mut far) = folder.pair_of_ends().await;
    far.0.conn.refresh_traffic_keys().unwrap();
    far.0.flush().unwrap();
    for ask_kernel in [true, false, true] {
        assert!(near.is_silent(ask_kernel));
    }
    write_all(&mut near, b"with the new keys").await;
    let mut came = [0; 17];
    far.0.read_exact(&mut came).unwrap();
    assert_eq!(&came, b"with the new keys");
    far.0.write_all(b"x").unwrap();
    far.0.flush().unwrap();
    // An answer that nobody asked for.
    while near.is_silent(true) {
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn a_connection_that_the_peer_closed_is_not_silent() {
    let folder = Folder::new();
    for in_order in [true, false] {
        let (mut near, mut far) = folder.pair_of_ends().await;
        if in_order {
            far.0.conn.send_close_notify();
            far.0.flush().unwrap();
        }
        drop(far);
        std::future::poll_fn(|cx| near.poll_read_ready(cx)).await;
        while near.is_silent(true) {
            std::thread::yield_now();
        }
    }
}

/// What the kernel took is what was said to be taken: never a byte of a record that has not left whole.
#[tokio::test]
async fn what_was_taken_can_be_read_by_a_peer_that_gets_nothing_more() {
    let folder = Folder::new();
    let (mut near, mut far) = folder.pair_of_ends().await;
    let body = pattern(8 << 20);
    let (mut taken, mut partial) = (0, 0);
    // The peer reads nothing: at some point a record leaves in part.
    loop {
        match near.try_write(&body[taken..]) {
            Ok(0) => partial += 1,
            Ok(n) => taken += n,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                break;
            }
        }
    }
    assert!(taken < body.len() && partial > 0, "{taken} {partial}");
    // Ended in the middle of a record: not even TLS's own end can be sent.
    near.end_writes().unwrap();
    let mut came = Vec::new();
    let ended = far.0.read_to_end(&mut came).unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::UnexpectedEof);
    assert!(came.len() >= taken, "{} of {taken}", came.len());
    assert_eq!(came, body[..came.len()]);
}

#[tokio::test]
async fn messages_of_tls_own_never_hide_that_a_record_has_left() {
    let folder = Folder::new();
    let (mut near, mut far) = folder.pair_of_ends().await;
    let body = pattern(8 << 20);
    let mut taken = 0;
    while let Ok(n) = near.try_write(&body[taken..]) {
        taken += n;
    }
    // While a record is on its way, the peer asks for new keys: the answer to that must wait behind it, and not
    // be counted as a part of it.
    far.0.conn.refresh_traffic_keys().unwrap();
    far.0.conn.write_tls(&mut far.0.sock).unwrap();
    std::future::poll_fn(|cx| near.poll_read_ready(cx)).await;
    let nothing = near.try_read(&mut Buf::default(), usize::MAX).unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
    let read = tokio::task::spawn_blocking(move || {
        let mut came = vec![0; 8 << 20];
        far.0.read_exact(&mut came).unwrap();
        came
    });
    write_all(&mut near, &body[taken..]).await;
    assert_eq!(read.await.unwrap(), body);
}

#[tokio::test]
async fn a_connection_dropped_at_rest_is_ended_in_order() {
    let folder = Folder::new();
    let (mut near, mut far) = folder.pair_of_ends().await;
    near.rest(true);
    drop(near);
    assert_eq!(far.0.read(&mut [0; 8]).unwrap(), 0);
    let (near, mut far) = folder.pair_of_ends().await;
    drop(near);
    assert!(far.0.read(&mut [0; 8]).is_err());
}

/// Looks twice, as a change that doesn't fit is judged at the second look.
fn look(watched: &dyn Watched) -> Refreshed {
    match watched.refresh() {
        Refreshed::Same => watched.refresh(),
        other => other,
    }
}

#[test]
fn a_pair_replaced_one_after_the_other_is_taken_when_it_fits() {
    let folder = Folder::new();
    let server = folder.server();
    let (before, (cert, key)) = (server.held.get(), folder.pair());
    assert_eq!(look(&server), Refreshed::Same);
    std::fs::write(folder.at("cert.pem"), cert).unwrap();
    assert_eq!(server.refresh(), Refreshed::Same, "perhaps the key follows");
    assert!(Arc::ptr_eq(&before, &server.held.get()));
    std::fs::write(folder.at("key.pem"), key).unwrap();
    assert_eq!(server.refresh(), Refreshed::Taken);
    assert!(!Arc::ptr_eq(&before, &server.held.get()));
    assert_eq!(look(&server), Refreshed::Same);
}

#[test]
fn files_that_do_not_fit_are_refused_once_and_the_old_pair_stays() {
    let folder = Folder::new();
    let server = folder.server();
    let before = server.held.get();
    let (good_cert, good_key) = ["cert.pem", "key.pem"]
        .map(|name| std::fs::read(folder.at(name)).unwrap())
        .into();
    for (name, broken) in [
        ("cert.pem", folder.pair().0.into_bytes()),
        ("key.pem", b"-----BEGIN PRIVATE KEY-----\n".to_vec()),
        ("cert.pem", Vec::new()),
    ] {
        std::fs::write(folder.at(name), broken).unwrap();
        let Refreshed::Refused(unfit) = look(&server) else {
            panic!("{name} was not refused");
        };
        assert!(
            unfit.what.contains(folder.folder.path().to_str().unwrap()),
            "{unfit}"
        );
        assert_eq!(look(&server), Refreshed::Same, "once");
    }
    std::fs::remove_file(folder.at("cert.pem")).unwrap();
    assert!(matches!(look(&server), Refreshed::Refused(unfit) if unfit.key == "cert_file"));
    assert!(Arc::ptr_eq(&before, &server.held.get()));
    std::fs::write(folder.at("cert.pem"), good_cert).unwrap();
    std::fs::write(folder.at("key.pem"), good_key).unwrap();
    assert_eq!(look(&server), Refreshed::Taken);
}

#[test]
fn a_swapped_symlink_is_a_change() {
    let folder = Folder::new();
    for version in ["1", "2"] {
        std::fs::create_dir(folder.at(version)).unwrap();
        let (cert, key) = folder.pair();
        std::fs::write(folder.at(version).join("cert.pem"), cert).unwrap();
        std::fs::write(folder.at(version).join("key.pem"), key).unwrap();
    }
    let link = |version: &str| {
        std::os::unix::fs::symlink(version, folder.at("new")).unwrap();
        std::fs::rename(folder.at("new"), folder.at("data")).unwrap();
    };
    link("1");
    let files = ServerFiles {
        cert: folder.at("data/cert.pem"),
        key: folder.at("data/key.pem"),
        client_ca: None,
    };
    let server = ServerTls::load(files, &[]).unwrap();
    assert_eq!(look(&server), Refreshed::Same);
    link("2");
    assert_eq!(server.refresh(), Refreshed::Taken);
}

#[test]
fn what_is_wrong_with_a_file_is_said_of_its_key() {
    let folder = Folder::new();
    let load = |change: &dyn Fn(&mut ServerFiles)| {
        let mut files = folder.server_files();
        change(&mut files);
        ServerTls::load(files, &[]).unwrap_err()
    };
    let other = folder.pair().1;
    std::fs::write(folder.at("other.pem"), other).unwrap();
    std::fs::write(folder.at("noise"), "noise").unwrap();
    let none = load(&|files| files.cert = folder.at("none"));
    assert!(
        none.key == "cert_file" && none.what.contains("can't be read"),
        "{none}"
    );
    let mismatch = load(&|files| files.key = folder.at("other.pem"));
    assert!(
        mismatch.key == "key_file" && mismatch.what.contains("not that of"),
        "{mismatch}"
    );
    let noise = load(&|files| files.key = folder.at("noise"));
    assert!(
        noise.key == "key_file" && noise.what.contains("PKCS#8"),
        "{noise}"
    );
    assert_eq!(load(&|files| files.cert = folder.at("noise")).key, "cert_file");
    assert_eq!(
        load(&|files| files.client_ca = Some(folder.at("noise"))).key,
        "client_ca_file"
    );
    assert_eq!(
        load(&|files| files.client_ca = Some("/dev".into())).key,
        "client_ca_file"
    );
    assert_eq!(
        ClientTls::load(ClientFiles::default(), "a b").unwrap_err().key,
        "server_name"
    );
}

#[test]
fn a_certificate_tells_its_owners_names() {
    let mut params = CertificateParams::new(["orders-1.test".to_owned()]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "orders-1");
    let uri = "spiffe://test/orders".to_owned();
    params
        .subject_alt_names
        .push(rcgen::SanType::URI(uri.clone().try_into().unwrap()));
    let cert = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
    let names = super::names(cert.der());
    assert_eq!(names.common_name.as_deref(), Some("orders-1"));
    assert_eq!(
        (names.dns_names, names.uris),
        (vec!["orders-1.test".to_owned()], vec![uri])
    );
}

#[test]
fn neither_keys_nor_certificates_are_shown() {
    let folder = Folder::new();
    let shown = format!("{:?} {:?}", folder.server(), folder.client());
    assert!(shown.contains("key.pem") && !shown.contains("BEGIN"), "{shown}");
    assert!(shown.len() < 1000, "{shown}");
    assert!(Path::new(&folder.at("key.pem")).exists());
}
