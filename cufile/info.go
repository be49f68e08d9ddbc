package cufile

import "github.com/hbmfs/hbmfs/control"

// FileInfo is what is known of a file. Of one that is in no mount that is its size.
type FileInfo struct {
	Size        int64
	Mounted     bool   // of an hbmfs mount, and read from where its bytes lie
	DType       uint32 // of the elements, as numbered in docs/control-protocol.md; 0 where unknown
	ElementSize uint32 // bytes, 0 where unknown
	Tokens      int64  // elements of the payload, -1 where unknown
	Generation  uint64 // equal for equal content; 0 where unknown
	Runs        int64  // pieces that the file is made of
	Note        string // why it is read through the mount; empty as a rule
}

// Info says what is known of the file. It asks nobody.
func (f *File) Info() FileInfo {
	info := FileInfo{Size: f.Size(), Tokens: -1, Runs: 1, Note: f.note}
	if s, ok := f.source.(interface{ Told() *control.FileInfo }); ok {
		told := s.Told()
		info.Mounted, info.Runs = true, told.Runs
		info.DType, info.ElementSize, info.Tokens, info.Generation = told.DType, told.ElementSize, told.Tokens, told.Generation
	}
	return info
}
