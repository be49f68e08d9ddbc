package layout

import "fmt"

// DType is the type of a file's elements. The numbers are stable: they travel over the control channel.
type DType uint8

// The element types. F8 types and BF16 have no NumPy name.
const (
	DTypeUnknown DType = iota
	U8
	I8
	U16
	I16
	U32
	I32
	U64
	I64
	F16
	BF16
	F32
	F64
	Bool
	F8E4M3
	F8E5M2
)

type dtypeInfo struct {
	name  string
	size  int
	numpy string // NumPy's descr, little-endian
}

func (d DType) info() dtypeInfo {
	all := [...]dtypeInfo{
		DTypeUnknown: {"unknown", 0, ""},
		U8:           {"u8", 1, "|u1"},
		I8:           {"i8", 1, "|i1"},
		U16:          {"u16", 2, "<u2"},
		I16:          {"i16", 2, "<i2"},
		U32:          {"u32", 4, "<u4"},
		I32:          {"i32", 4, "<i4"},
		U64:          {"u64", 8, "<u8"},
		I64:          {"i64", 8, "<i8"},
		F16:          {"f16", 2, "<f2"},
		BF16:         {"bf16", 2, ""},
		F32:          {"f32", 4, "<f4"},
		F64:          {"f64", 8, "<f8"},
		Bool:         {"bool", 1, "|b1"},
		F8E4M3:       {"f8_e4m3", 1, ""},
		F8E5M2:       {"f8_e5m2", 1, ""},
	}
	if int(d) < len(all) {
		return all[d]
	}
	return all[DTypeUnknown]
}

// String returns the short name: u16, bf16, unknown.
func (d DType) String() string { return d.info().name }

// Size returns the bytes of one element, 0 for DTypeUnknown.
func (d DType) Size() int { return d.info().size }

// NumPy returns the descr of a .npy header, such as "<u2", and "" where NumPy has no such type.
func (d DType) NumPy() string { return d.info().numpy }

// Integer reports whether the elements are integers, as token ids are.
func (d DType) Integer() bool { return d >= U8 && d <= I64 }

// ParseDType returns the type with the given short name.
func ParseDType(name string) (DType, error) {
	for d := U8; d <= F8E5M2; d++ {
		if d.String() == name {
			return d, nil
		}
	}
	return DTypeUnknown, fmt.Errorf("dtype %q is not known: use u8, i8, u16, i16, u32, i32, u64, i64, f16, bf16, f32, f64 or bool", name)
}

// MarshalText makes a DType appear by its name in JSON.
func (d DType) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads a name. One of a later version is DTypeUnknown.
func (d *DType) UnmarshalText(name []byte) error {
	*d, _ = ParseDType(string(name)) // it gives DTypeUnknown beside its error
	return nil
}
