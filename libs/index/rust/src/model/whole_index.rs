//! A small index in which all happens at once.

use super::{Arc, Orders, explore, found, live, settle, small, spawn, store};

/// One thread stores through a growth, one looks up, and one retires a worker, sweeps it, and gives its slot to another.
#[test]
fn an_index_in_use_answers_with_what_was() {
    explore("whole_index", Orders::Preemptions(1), || {
        let index = small();
        let one = live(&index, 1, &[1, 2]);
        let gone = live(&index, 2, &[1, 3]);
        let reader = spawn({
            let index = Arc::clone(&index);
            move || {
                let answer = found(&index, &[1]);
                let was = [&[(1, 1)][..], &[(1, 1), (2, 1)]].contains(&&answer[..]);
                assert!(was, "{answer:?}");
            }
        });
        let writer = spawn({
            let index = Arc::clone(&index);
            move || store(&index, one, &[4, 5])
        });
        index.retire(gone);
        let _ = index.sweep(64);
        let _ = index.sweep(64);
        let three = live(&index, 3, &[6]);
        assert_eq!(writer.join().unwrap(), 2);
        reader.join().unwrap();
        settle(&index);
        assert_eq!(found(&index, &[1, 2, 4, 5]), [(1, 4)]);
        assert_eq!(found(&index, &[3]), []);
        assert_eq!(found(&index, &[6]), [(3, 1)]);
        assert_eq!(index.summary(three).blocks, 1);
    });
}
