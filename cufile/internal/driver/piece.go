package driver

import "unsafe"

// Piece is an entry of the gather kernel's table, see gather.cu.
type Piece struct {
	From, To Pointer
	N        int64
}

// PieceBytes is the size of a Piece.
const PieceBytes = 24

// Pieces is memory as a table, as far as whole entries go. It is aligned to 8 bytes.
func Pieces(memory []byte) []Piece {
	return unsafe.Slice((*Piece)(unsafe.Pointer(unsafe.SliceData(memory))), len(memory)/PieceBytes)
}
