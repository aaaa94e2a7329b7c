//! What the HTTP/1.1 codec costs a request: a typical upload's head in and out, an answer's, and 64 KiB of chunks.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fencegate::wire::http1::{
    BodyReader, Forwarded, Framing, HeaderStorage, Piece, ResponseOptions, Version, find_head_end,
    parse_request, parse_response, write_request_head, write_response_head,
};

const PUT: &[u8] = b"PUT /orders/2026/11/29/0001.json?partNumber=3 HTTP/1.1\r\n\
    Host: s3.example.test:9000\r\n\
    User-Agent: aws-sdk-go/1.44 (go1.22; linux; amd64)\r\n\
    Content-Length: 1024\r\n\
    Authorization: AWS4-HMAC-SHA256 Credential=AKIAEXAMPLE/20261129/eu-west-1/s3/aws4_request, \
    SignedHeaders=content-md5;host;x-amz-content-sha256;x-amz-date, \
    Signature=0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\r\n\
    Content-MD5: XrY7u+Ae7tCTyyK7j1rNww==\r\n\
    Content-Type: application/json\r\n\
    X-Amz-Content-Sha256: UNSIGNED-PAYLOAD\r\n\
    X-Amz-Date: 20261129T120000Z\r\n\
    Fencing-Token: 34\r\n\
    Accept-Encoding: identity\r\n\r\n";

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\n\
    Date: Sun, 29 Nov 2026 12:00:00 GMT\r\n\
    Server: store\r\n\
    ETag: \"5eb63bbbe01eeed093cb22bb8f5acdc3\"\r\n\
    Content-Length: 0\r\n\r\n";

fn request_head(c: &mut Criterion) {
    let forwarded = Forwarded {
        client_ip: "10.0.0.7",
        proto: "http",
        via: "1.1",
    };
    let mut out = Vec::with_capacity(4096);
    c.bench_function("find, parse and write a PUT's head", |b| {
        b.iter(|| {
            out.clear();
            let end = find_head_end(black_box(PUT), 0).expect("the head is whole");
            let mut storage = HeaderStorage::new();
            let head = parse_request(&PUT[..end], &mut storage).expect("the head is good");
            write_request_head(&mut out, &head, Some(&forwarded), false);
            black_box(out.len())
        });
    });
}

fn response_head(c: &mut Criterion) {
    let mut out = Vec::with_capacity(4096);
    c.bench_function("find, parse and write an answer's head", |b| {
        b.iter(|| {
            out.clear();
            let end = find_head_end(black_box(ANSWER), 0).expect("the head is whole");
            let mut storage = HeaderStorage::new();
            let head = parse_response(&ANSWER[..end], "PUT", &mut storage).expect("the head is good");
            let options = ResponseOptions {
                client: Version::V11,
                close: false,
                body: head.framing_for(Version::V11),
            };
            write_response_head(&mut out, &head, options);
            black_box(out.len())
        });
    });
}

fn chunks(c: &mut Criterion) {
    let mut body = Vec::new();
    for _ in 0..16 {
        body.extend_from_slice(b"1000\r\n");
        body.extend_from_slice(&[b'x'; 4096]);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"0\r\n\r\n");
    let mut group = c.benchmark_group("body");
    group.throughput(Throughput::Bytes(64 * 1024));
    group.bench_function("read 64 KiB in 16 chunks", |b| {
        b.iter(|| read_chunks(black_box(&body)))
    });
    group.finish();
}

fn read_chunks(body: &[u8]) -> usize {
    let mut reader = BodyReader::new(Framing::Chunked, 1024);
    let (mut at, mut payload) = (0, 0);
    loop {
        match reader.next(&body[at..]).expect("the chunks are good") {
            Piece::Data { skip, len } => {
                at += skip + len;
                payload += len;
            }
            Piece::NeedMore { .. } => unreachable!("the body is whole"),
            Piece::End { .. } => return payload,
        }
    }
}

criterion_group! {
    name = codec;
    config = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = request_head, response_head, chunks
}
criterion_main!(codec);
