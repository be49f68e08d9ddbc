package tokenizer

import (
	"slices"
	"unicode"
)

// tabled is the end of the runes that tables are made of. Of those from there on only format characters, variation
// selectors and private ones are assigned.
const tabled = 0x33000

// categoryNames returns the general categories. The index of one is its number in categories.
func categoryNames() []string {
	return []string{
		"Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po",
		"Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cs",
	}
}

// categories returns the number of the general category of every rune below tabled.
func categories() []uint8 {
	table := make([]uint8, tabled)
	names := categoryNames()
	set := func(lo, hi, stride rune, number uint8) {
		for r := lo; r <= hi && r < tabled; r += stride {
			table[r] = number
		}
	}
	for i, name := range names {
		if ranges := unicode.Categories[name]; ranges != nil && i > 0 { // 0 is there already
			for _, x := range ranges.R16 {
				set(rune(x.Lo), rune(x.Hi), rune(x.Stride), uint8(i))
			}
			for _, x := range ranges.R32 {
				set(rune(x.Lo), rune(x.Hi), rune(x.Stride), uint8(i))
			}
		}
	}
	for _, x := range laterCategories() {
		set(x.lo, x.hi, 1, uint8(slices.Index(names, x.category)))
	}
	return table
}

// category returns the general category of r.
func category(r rune) string {
	for _, x := range laterCategories() {
		if x.lo <= r && r <= x.hi {
			return x.category
		}
	}
	for _, name := range categoryNames()[1:] {
		if unicode.Is(unicode.Categories[name], r) {
			return name
		}
	}
	return "Cn"
}

// categoryRange is runes of one general category.
type categoryRange struct {
	lo, hi   rune
	category string
}

// laterCategories returns where Unicode 16.0, of the tokenizers and tiktoken packages, is not the 15.0 of Go's tables.
// Oniguruma's \p{...}, asked for every rune, gave them.
func laterCategories() []categoryRange {
	return []categoryRange{
		{0x897, 0x897, "Mn"}, {0x1b4e, 0x1b4f, "Po"}, {0x1b7f, 0x1b7f, "Po"}, {0x1c89, 0x1c89, "Lu"},
		{0x1c8a, 0x1c8a, "Ll"}, {0x2427, 0x2429, "So"}, {0x2ffc, 0x2fff, "So"}, {0x31e4, 0x31e5, "So"},
		{0x31ef, 0x31ef, "So"}, {0xa7cb, 0xa7cc, "Lu"}, {0xa7cd, 0xa7cd, "Ll"}, {0xa7da, 0xa7da, "Lu"},
		{0xa7db, 0xa7db, "Ll"}, {0xa7dc, 0xa7dc, "Lu"}, {0x105c0, 0x105f3, "Lo"}, {0x10d40, 0x10d49, "Nd"},
		{0x10d4a, 0x10d4d, "Lo"}, {0x10d4e, 0x10d4e, "Lm"}, {0x10d4f, 0x10d4f, "Lo"}, {0x10d50, 0x10d65, "Lu"},
		{0x10d69, 0x10d6d, "Mn"}, {0x10d6e, 0x10d6e, "Pd"}, {0x10d6f, 0x10d6f, "Lm"}, {0x10d70, 0x10d85, "Ll"},
		{0x10d8e, 0x10d8f, "Sm"}, {0x10ec2, 0x10ec4, "Lo"}, {0x10efc, 0x10efc, "Mn"}, {0x11380, 0x11389, "Lo"},
		{0x1138b, 0x1138b, "Lo"}, {0x1138e, 0x1138e, "Lo"}, {0x11390, 0x113b5, "Lo"}, {0x113b7, 0x113b7, "Lo"},
		{0x113b8, 0x113ba, "Mc"}, {0x113bb, 0x113c0, "Mn"}, {0x113c2, 0x113c2, "Mc"}, {0x113c5, 0x113c5, "Mc"},
		{0x113c7, 0x113ca, "Mc"}, {0x113cc, 0x113cd, "Mc"}, {0x113ce, 0x113ce, "Mn"}, {0x113cf, 0x113cf, "Mc"},
		{0x113d0, 0x113d0, "Mn"}, {0x113d1, 0x113d1, "Lo"}, {0x113d2, 0x113d2, "Mn"}, {0x113d3, 0x113d3, "Lo"},
		{0x113d4, 0x113d5, "Po"}, {0x113d7, 0x113d8, "Po"}, {0x113e1, 0x113e2, "Mn"}, {0x116d0, 0x116e3, "Nd"},
		{0x1171e, 0x1171e, "Mc"}, {0x11bc0, 0x11be0, "Lo"}, {0x11be1, 0x11be1, "Po"}, {0x11bf0, 0x11bf9, "Nd"},
		{0x11f5a, 0x11f5a, "Mn"}, {0x13460, 0x143fa, "Lo"}, {0x16100, 0x1611d, "Lo"}, {0x1611e, 0x16129, "Mn"},
		{0x1612a, 0x1612c, "Mc"}, {0x1612d, 0x1612f, "Mn"}, {0x16130, 0x16139, "Nd"}, {0x16d40, 0x16d42, "Lm"},
		{0x16d43, 0x16d6a, "Lo"}, {0x16d6b, 0x16d6c, "Lm"}, {0x16d6d, 0x16d6f, "Po"}, {0x16d70, 0x16d79, "Nd"},
		{0x18cff, 0x18cff, "Lo"}, {0x1cc00, 0x1ccef, "So"}, {0x1ccf0, 0x1ccf9, "Nd"}, {0x1cd00, 0x1ceb3, "So"},
		{0x1e5d0, 0x1e5ed, "Lo"}, {0x1e5ee, 0x1e5ef, "Mn"}, {0x1e5f0, 0x1e5f0, "Lo"}, {0x1e5f1, 0x1e5fa, "Nd"},
		{0x1e5ff, 0x1e5ff, "Po"}, {0x1f8b2, 0x1f8bb, "So"}, {0x1f8c0, 0x1f8c1, "So"}, {0x1fa89, 0x1fa89, "So"},
		{0x1fa8f, 0x1fa8f, "So"}, {0x1fabe, 0x1fabe, "So"}, {0x1fac6, 0x1fac6, "So"}, {0x1fadc, 0x1fadc, "So"},
		{0x1fadf, 0x1fadf, "So"}, {0x1fae9, 0x1fae9, "So"}, {0x1fbcb, 0x1fbef, "So"}, {0x2ebf0, 0x2ee5d, "Lo"},
	}
}
