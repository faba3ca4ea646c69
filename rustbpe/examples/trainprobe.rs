use rustbpe::train::*; use rustbpe::split::*; use std::time::Instant;
fn main(){
  let th:usize=std::env::args().nth(1).unwrap().parse().unwrap(); let v:usize=std::env::args().nth(2).unwrap().parse().unwrap();
  let raw=std::fs::read("/tmp/w/mix.bin").unwrap();
  let docs:Vec<&str>=raw.split(|&b|b==0).map(|d|std::str::from_utf8(d).unwrap()).collect();
  let t=Instant::now(); let mut c=WordCounter::new(Splitter::new(DEFAULT_PATTERN).unwrap(),th,None,None);
  c.add(&docs[..]).unwrap(); let m=c.finish(); let a=t.elapsed().as_secs_f64(); let n=m.len();
  let mr=learn_merges(m,v-256,|_|true).unwrap(); let e=t.elapsed().as_secs_f64();
  let mut h=0u64; for i in &mr{h=h.wrapping_mul(31).wrapping_add(((i.0 as u64)<<32)|i.1 as u64);}
  println!("count {a:.2}s {n} words; total {e:.2}s; {} merges {h:x} {:?}",mr.len(),&mr[..4]);
  for l in std::fs::read_to_string("/proc/self/status").unwrap().lines(){if l.starts_with("VmHWM"){println!("{l}")}}
}
