//! A real S3 store: the crate s3s-fs serves a folder, and wants every request signed (SigV4).
//!
//! It runs on a thread of the test, on a port of its own, and ends with the test's process.

use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::channel;

use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use tempfile::TempDir;
use tokio::net::TcpListener;

pub const ACCESS_KEY: &str = "key";
pub const SECRET_KEY: &str = "secret";

/// The store, listening, with one bucket: `orders`.
pub struct S3 {
    folder: TempDir,
    pub port: u16,
}

impl S3 {
    pub fn start() -> S3 {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("orders")).unwrap();
        let path = folder.path().to_owned();
        let (tell, told) = channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
                tell.send(listener.local_addr().unwrap().port()).unwrap();
                serve(listener, path).await;
            });
        });
        let port = told.recv().unwrap();
        S3 { folder, port }
    }

    /// Where an object's content lies.
    pub fn file(&self, key: &str) -> PathBuf {
        self.folder.path().join("orders").join(key)
    }

    pub fn content(&self, key: &str) -> Option<String> {
        fs::read_to_string(self.file(key)).ok()
    }
}

async fn serve(listener: TcpListener, folder: PathBuf) {
    let mut builder = S3ServiceBuilder::new(s3s_fs::FileSystem::new(folder).unwrap());
    builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
    let service = builder.build();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let service = service.clone();
        tokio::spawn(async move {
            // A client that breaks off in the middle of a body is an error here; the store drops the write.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}
