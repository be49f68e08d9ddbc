package layout

import (
	"encoding/binary"
	"fmt"
)

// npyMagic begins every .npy file (numpy, numpy/lib/format.py).
const npyMagic = "\x93NUMPY"

// NPYHeader returns a version 1.0 .npy header for a C-ordered array of the given element type and shape. Like NumPy's
// own, it ends at a multiple of 64 bytes; for one dimension that is 128.
func NPYHeader(d DType, shape ...int64) []byte {
	return NPYHeaderAligned(d, 64, shape...)
}

// NPYHeaderAligned is NPYHeader with the data at a multiple of align bytes, at most 32 KiB. NumPy allows any padding.
func NPYHeaderAligned(d DType, align int, shape ...int64) []byte {
	dict := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': %s, }", d.NumPy(), shapeText(shape))
	const fixed = len(npyMagic) + 2 + 2 // magic, version, length
	total := (fixed + max(len(dict)+1, 118) + align - 1) / align * align
	out := make([]byte, 0, total)
	out = append(out, npyMagic...)
	out = append(out, 1, 0)
	out = binary.LittleEndian.AppendUint16(out, uint16(total-fixed))
	out = append(out, dict...)
	for len(out) < total-1 {
		out = append(out, ' ')
	}
	return append(out, '\n')
}
