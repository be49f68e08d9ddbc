package layout

import (
	"fmt"
	"strings"
)

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
	long  string // as NumPy and PyTorch call it
}

func (d DType) info() dtypeInfo {
	all := [...]dtypeInfo{
		DTypeUnknown: {"unknown", 0, "", "unknown"},
		U8:           {"u8", 1, "|u1", "uint8"},
		I8:           {"i8", 1, "|i1", "int8"},
		U16:          {"u16", 2, "<u2", "uint16"},
		I16:          {"i16", 2, "<i2", "int16"},
		U32:          {"u32", 4, "<u4", "uint32"},
		I32:          {"i32", 4, "<i4", "int32"},
		U64:          {"u64", 8, "<u8", "uint64"},
		I64:          {"i64", 8, "<i8", "int64"},
		F16:          {"f16", 2, "<f2", "float16"},
		BF16:         {"bf16", 2, "", "bfloat16"},
		F32:          {"f32", 4, "<f4", "float32"},
		F64:          {"f64", 8, "<f8", "float64"},
		Bool:         {"bool", 1, "|b1", "bool"},
		F8E4M3:       {"f8_e4m3", 1, "", "float8_e4m3fn"},
		F8E5M2:       {"f8_e5m2", 1, "", "float8_e5m2"},
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

// Long returns the name that NumPy and PyTorch have for the type: uint16, bfloat16, unknown.
func (d DType) Long() string { return d.info().long }

// ParseDType reads an element type as people write it: u16, uint16, <u2, np.uint16 and torch.uint16 are one. Of u8 and i8, which
// NumPy would take for 8 bytes, this is the reading with 8 bits, as hbmfs prints them.
func ParseDType(name string) (DType, error) {
	bare := name
	for _, module := range []string{"np.", "numpy.", "torch.", "jnp.", "jax.numpy."} {
		bare = strings.TrimPrefix(bare, module)
	}
	numpy := strings.TrimLeft(bare, "<=|")
	for d := U8; d <= F8E5M2; d++ {
		if i := d.info(); bare == i.name || bare == i.long || i.numpy != "" && numpy == i.numpy[1:] {
			return d, nil
		}
	}
	if strings.HasPrefix(bare, ">") {
		return DTypeUnknown, fmt.Errorf("dtype %q is big-endian, and hbmfs converts no bytes: use a little-endian one such as <u2", name)
	}
	return DTypeUnknown, fmt.Errorf("dtype %q is not known: use uint8, int8, uint16, int16, uint32, int32, uint64, int64, float16, bfloat16, float32, float64 or bool", name)
}

// shortDType returns the type with the given short name, DTypeUnknown for none. Formats make such names of theirs.
func shortDType(name string) DType {
	for d := U8; d <= F8E5M2; d++ {
		if d.String() == name {
			return d
		}
	}
	return DTypeUnknown
}

// MarshalText makes a DType appear by its short name in JSON.
func (d DType) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads a short name. One of a later version is DTypeUnknown.
func (d *DType) UnmarshalText(name []byte) error {
	*d = shortDType(string(name))
	return nil
}
