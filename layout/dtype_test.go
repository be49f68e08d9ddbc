package layout

import (
	"strings"
	"testing"
)

// TestParseDTypeTakesTheNamesOfOthers has the names that python/hbmfs takes too: tests/suites/python/test_recognition.py has the same ones.
func TestParseDTypeTakesTheNamesOfOthers(t *testing.T) {
	for want, names := range map[DType]string{
		U8: "u8 uint8 u1 |u1 np.uint8 torch.uint8", I8: "i8 int8 i1 |i1 np.int8", U16: "u16 uint16 u2 <u2 =u2 np.uint16 numpy.uint16 torch.uint16 jnp.uint16",
		I16: "i16 int16 <i2", U32: "u32 uint32 <u4 np.uint32 torch.uint32", I32: "i32 int32 i4 <i4", U64: "u64 uint64 <u8", I64: "i64 int64 <i8 torch.int64",
		F16: "f16 float16 <f2", BF16: "bf16 bfloat16 torch.bfloat16", F32: "f32 float32 f4", F64: "f64 float64 f8", Bool: "bool |b1 np.bool torch.bool",
		F8E4M3: "f8_e4m3 torch.float8_e4m3fn", F8E5M2: "f8_e5m2 float8_e5m2",
	} {
		for name := range strings.FieldsSeq(names) {
			if got, err := ParseDType(name); got != want || err != nil {
				t.Errorf("%s is %s (%v), want %s", name, got, err, want)
			}
		}
	}
	for name, want := range map[string]string{"": "is not known", "<u3": "is not known", "unknown": "is not known", ">u2": "big-endian", "uint16 ": "is not known"} {
		if got, err := ParseDType(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is %s (%v), want an error that says %q", name, got, err, want)
		}
	}
}
