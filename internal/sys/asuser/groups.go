package asuser

import (
	"bytes"
	"os"
	"strconv"
	"strings"
)

// groupsOf returns the supplementary groups of a thread, nil where nobody can tell them.
func groupsOf(thread uint32) (groups []uint32) {
	if thread == 0 { // of a PID namespace that is not seen from here
		return nil
	}
	text, err := os.ReadFile("/proc/" + strconv.Itoa(int(thread)) + "/status")
	if err != nil {
		return nil
	}
	for line := range bytes.Lines(text) {
		rest, ok := strings.CutPrefix(string(line), "Groups:")
		if !ok {
			continue
		}
		for word := range strings.FieldsSeq(rest) {
			g, err := strconv.ParseUint(word, 10, 32)
			if err != nil {
				return nil
			}
			groups = append(groups, uint32(g))
		}
	}
	return groups
}
