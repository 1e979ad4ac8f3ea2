use crate::l2::Bitmap;

fn row(text: &str) -> Bitmap {
    text.chars().map(|bit| bit == '1').collect()
}

#[test]
fn a_prefix_is_set_and_ends_at_the_row() {
    assert_eq!(Bitmap::with_prefix(5, 2), row("11000"));
    assert_eq!(Bitmap::with_prefix(5, 5), row("11111"));
    assert_eq!(Bitmap::with_prefix(5, 9), row("11111"));
    assert_eq!(Bitmap::with_prefix(0, 9), Bitmap::new(0));
}

#[test]
fn what_lies_beyond_the_end_is_ignored_and_false() {
    for len in [0, 1, 63, 64, 65, 128] {
        let mut bits = Bitmap::new(len);
        bits.set(len);
        bits.set(len + 1000);
        bits.clear(len);
        bits.clear(usize::MAX);
        bits.set_all([len, usize::MAX]);
        assert_eq!(bits, Bitmap::new(len), "{len}");
        assert!(!bits.test(len) && !bits.test(usize::MAX), "{len}");
        bits.set_range(0..usize::MAX);
        assert_eq!(bits.count_ones(), len);
        assert_eq!((!&bits).count_ones(), 0, "{len}");
    }
}

#[test]
fn ranges_are_half_open() {
    let mut bits = Bitmap::new(8);
    bits.set_range(2..5);
    assert_eq!(bits, row("00111000"));
    bits.set_range(7..7);
    bits.set_range(20..30);
    #[expect(clippy::reversed_empty_ranges, reason = "it must do nothing")]
    bits.set_range(6..1);
    assert_eq!(bits, row("00111000"));
    bits.set_range(6..99);
    assert_eq!(bits, row("00111011"));
}

#[test]
fn set_bits_are_found_and_counted() {
    let mut bits = Bitmap::new(130);
    bits.set_all([129, 0, 63, 64, 63, 500]);
    assert_eq!(bits.ones().collect::<Vec<_>>(), [0, 63, 64, 129]);
    assert_eq!(bits.count_ones(), 4);
    assert_eq!(bits.highest_one(), Some(129));
    bits.clear(129);
    assert_eq!(bits.highest_one(), Some(64));
    assert!(!bits.test(129) && bits.test(64));
    assert_eq!(Bitmap::new(130).highest_one(), None);
    assert_eq!(Bitmap::new(0).highest_one(), None);
}

#[test]
fn leading_bits_are_counted_from_bit_0() {
    for (text, ones, zeros) in [
        ("", 0, 0),
        ("1101", 2, 0),
        ("0010", 0, 2),
        ("111", 3, 0),
        ("000", 0, 3),
    ] {
        let bits = row(text);
        assert_eq!(
            (bits.leading_ones(), bits.leading_zeros()),
            (ones, zeros),
            "{text}"
        );
    }
    assert_eq!(Bitmap::with_prefix(200, 131).leading_ones(), 131);
    assert_eq!(Bitmap::with_prefix(128, 128).leading_ones(), 128);
}

#[test]
fn elements_at_set_bits_are_gathered() {
    let names = ["a", "b", "c", "d"];
    assert_eq!(row("0101").gather(&names), [&"b", &"d"]);
    // Rows that are longer than what they speak of gather what is there.
    assert_eq!(row("000111").gather(&names), [&"d"]);
    assert!(row("0000").gather(&names).is_empty());
}

#[test]
fn rows_of_unequal_length_meet_at_the_shorter_and_join_at_the_longer() {
    let (long, short) = (row("11011"), row("011"));
    assert_eq!(&long & &short, row("010"));
    assert_eq!(&short & &long, row("010"));
    assert_eq!(&long | &short, row("11111"));
    assert_eq!(&short | &row("00001"), row("01101"));
    assert_eq!(!&long, row("00100"));
    let all = Bitmap::with_prefix(100, 100);
    assert_eq!((&all & &Bitmap::with_prefix(65, 65)).count_ones(), 65);
    assert_eq!((!&Bitmap::new(100)), all);
}

#[test]
fn it_prints_bit_0_first() {
    assert_eq!(row("11010").to_string(), "11010");
    assert_eq!(format!("{:?}", row("01")), "Bitmap(01)");
    assert_eq!(Bitmap::new(0).to_string(), "");
    assert!(Bitmap::new(0).is_empty() && !Bitmap::new(1).is_empty());
    assert_eq!(row("0101").len(), 4);
}
