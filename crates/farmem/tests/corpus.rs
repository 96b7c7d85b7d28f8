//! The inputs that the fuzzers of the protocol found worth keeping, replayed: what their targets
//! check holds for each.

#[path = "../../../fuzz/bodies/farmem_client.rs"]
mod client;
#[path = "../../../fuzz/bodies/farmem.rs"]
mod farmem;
#[path = "../../../fuzz/bodies/farmem_node.rs"]
mod node;

fn replay(target: &str, run: fn(&[u8])) -> usize {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/");
    let entries = std::fs::read_dir(format!("{folder}{target}")).unwrap();
    let inputs = entries.map(|entry| std::fs::read(entry.unwrap().path()).unwrap());
    inputs.map(|input| run(&input)).count()
}

#[test]
fn every_input_for_a_node_that_the_fuzzer_kept_is_survived() {
    assert!(replay("farmem_node", node::run) > 100);
}

#[test]
fn every_input_for_a_client_that_the_fuzzer_kept_is_survived() {
    assert!(replay("farmem_client", client::run) > 100);
}
