use rustbpe::encode::*; use rustbpe::vocab::*; use rustbpe::split::*; use std::time::Instant;
fn b64(s:&str)->Vec<u8>{ let mut out=vec![]; let mut acc=0u32; let mut bits=0; for c in s.bytes(){ let v=match c{b'A'..=b'Z'=>c-b'A',b'a'..=b'z'=>c-b'a'+26,b'0'..=b'9'=>c-b'0'+52,b'+'=>62,b'/'=>63,_=>break}; acc=acc<<6|v as u32; bits+=6; if bits>=8{bits-=8; out.push((acc>>bits) as u8); acc&=(1<<bits)-1;}} out}
fn main(){
  let ranks=std::fs::read_to_string("/work/shared/tiktoken_cache/9b5ad71b2ce5302211f9c61530b329a4922fc6a4").unwrap();
  let tokens:Vec<Vec<u8>>=ranks.lines().map(|l|b64(l.split(' ').next().unwrap())).collect();
  let raw=std::fs::read("/tmp/w/mix.bin").unwrap();
  let docs:Vec<&str>=raw.split(|&b|b==0).map(|d|std::str::from_utf8(d).unwrap()).collect();
  let mb=raw.len() as f64/1e6;
  let pat=r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s";
  let sp=Splitter::new(pat).unwrap();
  let mut ends=[0u32;256];
  let cold:usize=std::env::args().nth(3).and_then(|s|s.parse().ok()).unwrap_or(1); for _ in 0..(if cold==1{3}else{0}){ let t=Instant::now(); let mut n=0; for d in &docs{let mut s=0; loop{let k=sp.fill(d,s,&mut ends).unwrap(); if k==0{break} n+=k; s=ends[k-1] as usize;}} let e=t.elapsed().as_secs_f64(); eprintln!("split {n} pieces {:.0} MB/s {:.2} ns/piece",mb/e,e*1e9/n as f64);}
  let mode=std::env::args().nth(1).unwrap_or("1".into()); let th:usize=mode.parse().unwrap();
  for _ in 0..cold{ let t=Instant::now(); let enc=Encoder::new(Vocabulary::from_ranks(&tokens).unwrap(),Splitter::new(pat).unwrap()); let b=t.elapsed().as_secs_f64();
  let t=Instant::now(); let (ids,_)=enc.encode_batch::<u32,_>(&docs[..],None,th).unwrap(); let e=t.elapsed().as_secs_f64();
  let rep:usize=std::env::args().nth(2).and_then(|s|s.parse().ok()).unwrap_or(1); let mut e2=0.; for _ in 0..rep {
  let t=Instant::now(); let (_i,_)=enc.encode_batch::<u32,_>(&docs[..],None,th).unwrap(); e2=t.elapsed().as_secs_f64();}
  let mut h=0u64; for i in &ids{h=h.wrapping_mul(31).wrapping_add(*i as u64);}
  eprintln!("build {b:.2}s cold {:.0} MB/s warm {:.0} MB/s ids {} hash {h:x}",mb/e,mb/e2,ids.len());}
}
