package driver

import (
	"encoding/binary"
	"errors"
	"strconv"
	"strings"
	"testing"
)

func TestStatisticsThatCannotBeTrusted(t *testing.T) {
	uuid := [16]byte{9, 8, 7}
	make1 := func(shift, gpus int, set func(raw []byte)) []byte {
		raw := make([]byte, statsBuffer)
		for i := range raw[statsLevel3Size+shift:] {
			raw[statsLevel3Size+shift+i] = statsPoison
		}
		binary.LittleEndian.PutUint32(raw[statsGPUCount+shift:], uint32(gpus))
		copy(raw[statsFirstGPU+shift:], uuid[:])
		if set != nil {
			set(raw)
		}
		return raw
	}
	for name, c := range map[string]struct {
		raw     []byte
		version int
		ok      bool
	}{
		"1.15":                       {make1(0, 1, nil), 1150, true},
		"1.19":                       {make1(112, 1, nil), 1190, true},
		"1.19 taken for 1.18":        {make1(112, 1, nil), 1180, false},
		"1.18 taken for 1.19":        {make1(0, 1, nil), 1190, false},
		"no version":                 {make1(0, 1, nil), 0, false},
		"tomorrow's":                 {make1(0, 1, nil), 1210, false},
		"no GPU":                     {make1(0, 0, nil), 1150, false},
		"17 GPUs":                    {make1(0, 17, nil), 1150, false},
		"another GPU":                {make1(0, 1, func(raw []byte) { raw[statsFirstGPU] ^= 1 }), 1150, false},
		"wrote behind the layout":    {make1(0, 1, func(raw []byte) { raw[statsLevel3Size+3] = 0 }), 1150, false},
		"nothing was written at all": {nil, 1150, false},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := parseStats(c.raw, c.version, uuid, gpuReads); (err == nil) != c.ok || (err != nil && !errors.Is(err, ErrStatsUnknown)) {
				t.Errorf("%v, should be readable: %v", err, c.ok)
			}
		})
	}
}

func TestEveryErrorCodeHasAName(t *testing.T) {
	for code := 5001; code <= 5050; code++ {
		name, _ := describeCuFile(code)
		if (name == "unknown error") != (code == 5021 || code == 5032) {
			t.Errorf("%d is %q", code, name)
		}
	}
	if text := (&CuFileError{Call: "cuFileRead", Code: 5999}).Error(); !strings.Contains(text, strconv.Itoa(5999)) {
		t.Errorf("%q does not tell the code", text)
	}
}

func TestCPULists(t *testing.T) {
	if got, err := parseCPUList("0-2,7"); err != nil || len(got) != 4 || got[3] != 7 {
		t.Errorf("%v %v", got, err)
	}
	for _, bad := range []string{"a", "3-1", "-4", "0-99999999", "1,,2"} {
		if got, err := parseCPUList(bad); err == nil {
			t.Errorf("%q gives %v, want an error", bad, got)
		}
	}
}
