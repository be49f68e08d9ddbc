package checkpoints_test

import (
	"testing"

	"github.com/hbmfs/hbmfs/tests/suites/python/themes"
)

func TestPythonCheckpoints(t *testing.T) { themes.Run(t, "checkpoints") }
